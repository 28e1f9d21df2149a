import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.policy import exact, hull
from simulator.policy.problem import RoundProblem
from tests.policy.instances import LAMBDAS, all_assignments, channel, lognormal, problems, rounding

SETS = ((2, 4, 8), (1, 2, 4, 8), (0, 2, 3, 16), (2, 8), (4,), (0, 1, 2, 3, 4, 8, 16, 32))


def small(bits):
    return 2 if len(bits) > 4 else 3


@settings(max_examples=100, deadline=None)
@given(data=st.data(), bits=st.sampled_from(SETS), share=st.floats(0, 1))
def test_bound_below_optimum_below_answer(data, bits, share):
    problem = data.draw(problems(bits=(bits,), groups=small(bits), equal=False))
    front = hull.front(problem)
    points = [(s, v) for _, s, v in all_assignments(problem)]
    for lam in LAMBDAS:
        answer = front.at(lam)
        best = min(float(front.corners.score(s, v, lam)) for s, v in points)
        assert answer.lower_bound <= best + rounding(front.corners)
        assert answer.objective >= best - rounding(front.corners)
        assert answer.gap >= 0 and answer.seconds == problem.seconds(answer.bits)
    seconds = front.seconds[0] + share * (front.seconds[-1] - front.seconds[0])
    within = front.least_variance_within(seconds)
    best = min(v for s, v in points if s <= seconds)
    assert within.lower_bound <= best * (1 + 1e-9) and best <= within.variance * (1 + 1e-9)
    assert within.seconds <= seconds
    variance = front.variance[-1] + share * (front.variance[0] - front.variance[-1])
    fastest = front.least_time_within(variance)
    best = min((s for s, v in points if v <= variance * (1 - 1e-9)), default=np.inf)
    assert fastest.variance <= variance * (1 + 1e-9) and fastest.lower_bound <= best * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(problem=problems(channels=3, groups=8))
def test_bound_below_exact_below_hull(problem):
    near, best = hull.front(problem), exact.front(problem)
    for lam in LAMBDAS:
        one, other = near.at(lam), best.at(lam)
        assert one.lower_bound <= other.objective + rounding(best.corners)
        assert other.objective <= one.objective + rounding(best.corners)


def test_the_gap_is_small_on_real_sizes():
    problem = lognormal(12, 100, short=7, seed=5)
    for lam in (0.2, 0.5, 0.8):
        near, best = hull.solve(problem, lam), exact.solve(problem, lam)
        assert near.gap < 0.01 and best.objective <= near.objective <= best.objective * 1.005
    many = RoundProblem(channels=problem.channels, bits=(0, 1, 2, 3, 4, 8, 16, 32))
    assert hull.solve(many, 0.5).gap < 0.02


def test_the_exact_solver_is_preferred():
    assert hull.best_front(lognormal(2, 4)).solver == "exact"
    assert hull.best_front(lognormal(2, 4, bits=(1, 2, 4, 8))).solver == "hull"


def test_leftovers_are_filled():
    """The step of most worth doesn't fit, the next one does."""
    large_first = channel([100.0, 1.0])
    large_first.groups.size[:] = [50, 10]
    quick = channel([1.0], size=29)  # its time at 8 bits leaves 1392 spare bytes beside the 1200 of the other
    problem = RoundProblem(channels=(large_first, quick), bits=(2, 8))
    answer = hull.front(problem).least_variance_within(problem.seconds(problem.fill(0)) + 500e-9)
    assert answer.bits[0].tolist() == [2, 8] and answer.gap > 0


def test_beta_ratios_of_1e12_and_zeros():
    problem = RoundProblem(channels=(channel([1e12, 1.0, 0.0]), channel([1e-12])), bits=(1, 2, 4, 8))
    answer = hull.solve(problem, 1.0)
    assert answer.variance == pytest.approx(problem.variance(problem.fill(-1)), rel=1e-14)
    nothing = RoundProblem(channels=(channel([0.0]),), bits=(1, 2, 4, 8))
    assert hull.solve(nothing, 0.5).bits[0].tolist() == [1]


def test_dropped_rows_cost_nothing_and_the_caller_says_what_they_lose():
    one = channel([5.0, 1.0], gamma=0.0)
    cheap = RoundProblem(channels=(one,), bits=(0, 2, 4, 8))
    assert hull.solve(cheap, 0.0).seconds == 0
    worthless = RoundProblem(channels=(one,), bits=(0, 2, 4, 8), dropped_factor=0.0)
    assert hull.solve(worthless, 1.0).bits[0].tolist() == [0, 0]


def test_relabelled_channels_get_the_same_widths():
    problem = lognormal(5, 20, bits=(1, 2, 4, 8), seed=3)
    other = RoundProblem(channels=problem.channels[::-1], bits=problem.bits)
    for lam in LAMBDAS:
        one, two = hull.solve(problem, lam), hull.solve(other, lam)
        assert [b.tolist() for b in one.bits] == [b.tolist() for b in two.bits[::-1]]


def test_least_time_is_bounded_by_the_mixtures():
    """Lifting the small group is enough, but the large one is worth more and comes first."""
    one = channel([100.0, 1.0], gamma=0.0)
    one.groups.size[:] = [50, 10]
    front = hull.front(RoundProblem(channels=(one,), bits=(2, 8)))
    answer = front.least_time_within(101 / 9 - 0.1)
    best = front.seconds[0] + 10 * 48 * 1e-9
    assert answer.lower_bound <= best < answer.seconds and answer.gap > 0
