import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import NO_MESSAGE, CostError, PairCosts, ShortMessages, fit, pair_costs

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


def switched():
    """Pair 0 -> 1 has one line, 1 -> 0 takes another up to 1000 bytes, and 2 is as 0."""
    one = fit(SIZES, 1e-8 * SIZES + 1e-4)
    two = fit(SIZES, np.where(SIZES <= 65536, 2e-9 * SIZES + 2e-5, 1e-9 * SIZES + 3e-4))
    return one, two, {(0, 1): one, (1, 0): two, (0, 2): one, (2, 0): one, (1, 2): two, (2, 1): one}


@settings(max_examples=50, deadline=None)
@given(num_bytes=st.lists(st.integers(0, 10**7), min_size=9, max_size=9))
def test_two_lines_a_pair_are_kept(num_bytes):
    """Every pair's seconds are its own fit's, on either side of the switch and on it."""
    one, two, fits = switched()
    costs = pair_costs(3, fits)
    sizes = np.array(num_bytes, float).reshape(3, 3)
    sizes[1, 2] = two.switch_bytes
    ring = costs.ring_costs(sizes)
    for (s, r), found in fits.items():
        if sizes[s, r] > 0:
            assert (
                costs.seconds(sizes)[s, r] == ring[r, s] == pytest.approx(float(found.seconds(sizes[s, r])), rel=1e-12)
            )
        else:
            assert ring[r, s] == NO_MESSAGE
    assert costs.theta_s_per_byte[1, 0] == two.lines[1].theta_s_per_byte, "theta is that of long messages"
    assert (costs.low_bytes, costs.high_bytes) == (SIZES[0], SIZES[-1])
    assert costs.residual is not None and costs.residual[0, 1] == one.median_residual


def test_pairs_of_one_line_keep_one():
    _, _, fits = switched()
    costs = pair_costs(3, dict.fromkeys(fits, fits[0, 1]))
    assert costs.short is None
    assert costs.straight(np.ones((3, 3)), np.ones((3, 3))) == (costs, ())
    with pytest.raises(CostError, match=r"no fit for 1 of the pairs of 3 ranks, \(2, 1\)"):
        pair_costs(3, {pair: found for pair, found in fits.items() if pair != (2, 1)})


@pytest.mark.parametrize(
    ("low", "high", "short", "words"),
    [
        (1e3, 5e4, True, "2 of 6 pairs have two lines, and a policy takes one: that of short messages for 2"),
        (1e5, 1e6, False, "that of short messages for 0"),
        (1e3, 1e5, True, "2 may send on either side of their switch"),  # most of the range is below
        (5e4, 1e6, False, "2 may send on either side of their switch"),
    ],
)
def test_policies_get_the_line_that_covers_their_messages(low, high, short, words):
    _, two, fits = switched()
    costs = pair_costs(3, fits)
    line, (text,) = costs.straight(np.full((3, 3), low), np.full((3, 3), high))
    assert words in text
    assert line.short is None and line.theta_s_per_byte[0, 1] == costs.theta_s_per_byte[0, 1]
    assert line.theta_s_per_byte[1, 2] == two.lines[0 if short else 1].theta_s_per_byte
    assert line.gamma_s[1, 0] == two.lines[0 if short else 1].gamma_s
    if "either side" not in words:
        for sizes in (np.full((3, 3), low), np.full((3, 3), high)):
            np.testing.assert_allclose(line.seconds(sizes), costs.seconds(sizes), rtol=1e-12)


def test_the_switch_itself_is_short_and_silent_pairs_have_no_say():
    _, two, fits = switched()
    costs = pair_costs(3, fits)
    at = np.full((3, 3), two.switch_bytes)
    line, _ = costs.straight(at, at)
    np.testing.assert_allclose(line.seconds(at), costs.seconds(at), rtol=1e-12)
    assert costs.straight(np.zeros((3, 3)), np.zeros((3, 3)))[1] == ()


def test_more_bandwidth_is_for_both_lines():
    _, two, fits = switched()
    costs = pair_costs(3, fits)
    twice = costs.at_bandwidth(2.0)
    for size in (2e3, 1e6):
        sizes = np.full((3, 3), size)
        assert (2 * (twice.seconds(sizes) - costs.seconds(sizes) / 2))[1, 0] == pytest.approx(
            two.lines[size > 65536].gamma_s
        )
    for factor in (0.0, np.inf):
        with pytest.raises(CostError, match="a factor of bandwidth"):
            costs.at_bandwidth(factor)


def test_a_poor_fit_is_told_of_a_pair():
    costs = PairCosts(
        theta_s_per_byte=np.zeros((2, 2)), gamma_s=np.ones((2, 2)), residual=np.array([[9, 0.2], [0.01, 9]])
    )
    (text,) = costs.warnings(np.ones((2, 2)))
    assert text.startswith("the costs of 1 pairs miss their own measurements by up to 20.0%")


def test_refused_short_messages():
    square, long = np.zeros((2, 2)), {"theta_s_per_byte": np.zeros((2, 2)), "gamma_s": np.zeros((2, 2))}
    with pytest.raises(CostError, match=r"switch_bytes of short messages must be 2 x 2 as theta is, not \(3, 3\)"):
        short = ShortMessages(switch_bytes=np.zeros((3, 3)), theta_s_per_byte=square, gamma_s=square)
        PairCosts(**long, short=short)
    with pytest.raises(CostError, match="gamma of short messages must be finite"):
        short = ShortMessages(switch_bytes=square, theta_s_per_byte=square, gamma_s=np.full((2, 2), np.nan))
        PairCosts(**long, short=short)
