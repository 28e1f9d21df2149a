import numpy as np
import pytest
from hypothesis import given, settings

from simulator.policy import exact
from simulator.policy.problem import ProblemError, RoundProblem
from tests.policy.instances import LAMBDAS, all_assignments, brute_front, channel, lognormal, problems, rounding


def assert_equals_brute_force(problem):
    front = exact.front(problem)
    everything = [(s, v) for _, s, v in all_assignments(problem)]
    for seconds, variance in brute_front(everything):
        within = front.variance[np.searchsorted(front.seconds, seconds * (1 + 1e-12), "right") - 1]
        assert within == pytest.approx(variance, rel=1e-9)
    for lam in LAMBDAS:
        answer = front.at(lam)
        best = min(float(front.corners.score(s, v, lam)) for s, v in everything)
        assert answer.objective == pytest.approx(best, abs=rounding(front.corners))
        assert answer.objective - answer.lower_bound <= rounding(front.corners)
        assert answer.seconds == problem.seconds(answer.bits) and answer.variance == problem.variance(answer.bits)


@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_equals_brute_force_for_every_lambda(problem):
    assert_equals_brute_force(problem)


@settings(max_examples=60, deadline=None)
@given(problem=problems(channels=1, groups=6))
def test_equals_brute_force_on_one_channel(problem):
    assert_equals_brute_force(problem)


@settings(max_examples=60, deadline=None)
@given(problem=problems(bits=((1, 2, 4), (2, 8), (4,), (0, 2, 8), (2, 8, 16), (1, 4, 32), (3, 4, 8))))
def test_equals_brute_force_with_other_widths(problem):
    assert_equals_brute_force(problem)


@pytest.mark.parametrize("entries", [6, 7, 254])
def test_equals_brute_force_where_rows_do_not_fill_bytes(entries):
    """6 entries: 2, 3, 6 bytes; 7: 2, 4, 7; 254: 64, 127, 254. Steps of no common measure go another way."""
    assert_equals_brute_force(lognormal(2, 3, entries=entries, seed=1))
    assert_equals_brute_force(lognormal(1, 7, short=3, entries=entries, seed=2))


def test_a_short_group_in_any_place():
    for sizes in ([4, 10, 10], [10, 4, 10], [10, 10, 4], [4, 10]):
        one = channel([5.0, 2.0, 1.0][: len(sizes)])
        one.groups.size[:] = sizes
        assert_equals_brute_force(RoundProblem(channels=(one,)))


def test_zero_betas_and_ties():
    assert_equals_brute_force(RoundProblem(channels=(channel([0.0, 0.0, 0.0]), channel([1.0, 1.0, 1.0]))))
    everything_zero = exact.front(RoundProblem(channels=(channel([0.0, 0.0]),)))
    assert len(everything_zero.seconds) == 1 and everything_zero.at(0.5).variance == 0


def test_single_channel_single_group():
    front = exact.front(RoundProblem(channels=(channel([1.0]),)))
    assert front.variance == pytest.approx([1 / 9, 1 / 225, 1 / 65025])
    assert [front.at(lam).bits[0][0] for lam in (0, 0.5, 1)] == [2, 4, 8]


@pytest.mark.parametrize("theta", [0.0, 1e-9])
@pytest.mark.parametrize("gamma", [0.0, 1e-3])
def test_free_bytes_are_spent(theta, gamma):
    """theta = 0 on one channel: all of its groups at 8 bits at every lambda."""
    front = exact.front(
        RoundProblem(channels=(channel([3.0, 2.0], theta=0.0, gamma=gamma), channel([1.0, 0.5], theta=theta)))
    )
    for lam in LAMBDAS:
        assert front.at(lam).bits[0].tolist() == [8, 8]


def test_faster_channels_get_what_fits_for_free():
    problem = RoundProblem(channels=(channel([1.0], theta=1e-8), channel([1.0], theta=1e-9)))
    assert exact.solve(problem, 0.0).bits[0][0] == 2 and exact.solve(problem, 0.0).bits[1][0] == 8


def test_beta_ratios_of_1e12():
    """Small betas must not drown in sums with large ones."""
    problem = RoundProblem(channels=(channel([1e12, 1e6, 1.0]), channel([1.0, 1e-12])))
    assert_equals_brute_force(problem)
    answer = exact.solve(problem, 1.0)
    assert answer.variance == pytest.approx(problem.variance(problem.fill(-1)), rel=1e-14)


def test_relabelled_channels_get_the_same_widths():
    problem = lognormal(5, 40, short=3, seed=3)
    order = np.random.default_rng(0).permutation(5)
    relabelled = RoundProblem(channels=tuple(problem.channels[i] for i in order))
    for lam in LAMBDAS:
        one, other = exact.solve(problem, lam), exact.solve(relabelled, lam)
        assert [b.tolist() for b in other.bits] == [one.bits[i].tolist() for i in order]
        assert one.seconds == other.seconds and one.variance == other.variance
    again = exact.solve(problem, 0.5)
    assert all((a == b).all() for a, b in zip(again.bits, exact.solve(problem, 0.5).bits, strict=True))


def test_what_it_cannot_do_is_refused():
    three_sizes = channel([3.0, 2.0, 1.0])
    three_sizes.groups.size[:] = [1, 2, 3]
    four_widths = RoundProblem(channels=(channel([1.0]),), bits=(1, 2, 4, 8))
    for problem in (RoundProblem(channels=(three_sizes,)), four_widths):
        assert not exact.applies(problem)
        with pytest.raises(ProblemError, match="use the policy hull"):
            exact.front(problem)
    assert exact.applies(lognormal(2, 5, short=1))
