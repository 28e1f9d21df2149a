import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import NO_MESSAGE, CostError, PairCosts, fit

SIZES = np.geomspace(1e3, 1e7, 40)


@settings(max_examples=50, deadline=None)
@given(theta=st.floats(1e-12, 1e-6), gamma=st.floats(1e-7, 1e-2))
def test_an_exact_line_comes_back(theta, gamma):
    found = fit(SIZES, theta * SIZES + gamma)
    (line,) = found.lines
    np.testing.assert_allclose(found.seconds(SIZES), theta * SIZES + gamma, rtol=1e-6)
    assert line.r2 == pytest.approx(1, abs=1e-6) or np.ptp(theta * SIZES) < 1e-6 * gamma
    assert found.switch_bytes is None and found.warnings(SIZES) == ()
    assert (line.low_bytes, line.high_bytes) == (SIZES[0], SIZES[-1])


def test_the_minimum_of_repeats_counts():
    rng = np.random.default_rng(0)
    truth = 1e-8 * SIZES + 1e-4
    noisy = truth[:, None] * (1 + rng.exponential(0.5, (len(SIZES), 9)))
    noisy[:, 3] = truth
    (line,) = fit(SIZES, noisy).lines
    assert line.theta_s_per_byte == pytest.approx(1e-8)
    assert line.gamma_s == pytest.approx(1e-4)
    again = fit(np.repeat(SIZES, 9), noisy.ravel())  # repeats as rows of their own
    assert again.lines[0] == line


def test_short_messages_weigh_as_much_as_long_ones():
    rng = np.random.default_rng(1)
    (line,) = fit(SIZES, (1e-8 * SIZES + 1e-4) * (1 + 0.02 * rng.standard_normal(len(SIZES)))).lines
    assert line.gamma_s == pytest.approx(1e-4, rel=0.03)  # plain least squares misses it by far more
    plain = np.polyfit(SIZES, (1e-8 * SIZES + 1e-4) * (1 + 0.02 * rng.standard_normal(len(SIZES))), 1)[1]
    assert abs(plain - 1e-4) > abs(line.gamma_s - 1e-4)


def test_a_switch_of_protocol_is_found():
    truth = np.where(SIZES <= 65536, 2e-9 * SIZES + 2e-5, 1e-9 * SIZES + 3e-4)
    found = fit(SIZES, truth)
    assert len(found.lines) == 2
    assert found.switch_bytes == SIZES[SIZES <= 65536].max()
    np.testing.assert_allclose(found.seconds(SIZES), truth, rtol=1e-6)
    assert found.warnings(SIZES) == ()


def test_noise_alone_is_no_reason_for_two_lines():
    for seed in range(20):
        noise = 1 + 0.05 * np.random.default_rng(seed).standard_normal(len(SIZES))
        assert len(fit(SIZES, (1e-8 * SIZES + 1e-4) * noise).lines) == 1


def test_too_few_sizes_stay_one_line():
    assert len(fit([1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 9, 9, 9, 9]).lines) == 1


def test_theta_and_gamma_are_not_negative():
    (line,) = fit([1e3, 1e4, 1e5], [3e-4, 2e-4, 1e-4]).lines
    assert line.theta_s_per_byte == 0 and line.gamma_s > 0


def test_warnings():
    found = fit(SIZES, 1e-8 * SIZES + 1e-4)
    (text,) = found.warnings([0, 10, 1e4, 1e9])
    assert text.startswith("2 of 4 messages (10 to 1e+09 bytes) lie beyond the measured 1000 to 1e+07 bytes")
    rough = fit([1e3, 2e3, 3e3, 4e3], [1e-3, 4e-3, 1e-3, 4e-3])
    assert "misses its own measurements" in rough.warnings()[0]


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ([], [], "are needed"),
        ([1, 2], [1], r"not \(2,\) and \(1,\)"),
        ([5, 5], [1, 2], "all measurements are of 5 bytes"),
        ([1, 2], [1, 0], "seconds finite and > 0"),
        ([1, np.nan], [1, 1], "finite"),
        ([-1, 2], [1, 1], ">= 0"),
    ],
)
def test_refused_measurements(sizes, seconds, message):
    with pytest.raises(CostError, match=message):
        fit(sizes, seconds)


def pairs():
    theta = np.array([[0, 1e-8, 2e-8], [3e-8, 0, 4e-8], [5e-8, 6e-8, 0]])
    return PairCosts(theta_s_per_byte=theta, gamma_s=np.full((3, 3), 1e-4), low_bytes=100, high_bytes=1e6)


def test_pair_costs():
    num_bytes = np.array([[9, 0, 1e4], [1e3, 9, 10], [1e3, 2e6, 9]])
    seconds = pairs().seconds(num_bytes)
    assert seconds[0, 2] == pytest.approx(2e-8 * 1e4 + 1e-4)
    assert seconds[0, 1] == 0 and (np.diag(seconds) == 0).all()
    ring = pairs().ring_costs(num_bytes)
    assert ring[2, 0] == seconds[0, 2], "the engines' row is the receiver"
    assert ring[1, 0] == NO_MESSAGE and (np.diag(ring) == NO_MESSAGE).all()
    assert pairs().seconds(np.stack([num_bytes, num_bytes])).shape == (2, 3, 3)
    (text,) = pairs().warnings(num_bytes)
    assert text.startswith("2 of 5 messages (10 to 2e+06 bytes)")
    assert pairs().warnings(np.full((3, 3), 1e3)) == ()


def test_refused_pair_costs():
    with pytest.raises(CostError, match="N x N"):
        PairCosts(theta_s_per_byte=np.zeros((2, 3)), gamma_s=np.zeros((2, 3)))
    with pytest.raises(CostError, match="gamma must be finite and >= 0"):
        PairCosts(theta_s_per_byte=np.zeros((2, 2)), gamma_s=np.full((2, 2), -1.0))
    with pytest.raises(CostError, match="3 x 3"):
        pairs().seconds(np.zeros((2, 2)))
    with pytest.raises(CostError, match=">= 0"):
        pairs().seconds(np.full((3, 3), -1.0))
