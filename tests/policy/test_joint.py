import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.policy import exact, hull, joint
from simulator.policy.problem import ProblemError
from tests.policy.instances import LAMBDAS, lognormal, problems, rounding


def every_choice(fronts, weights):
    for points in itertools.product(*(range(len(f.seconds)) for f in fronts)):
        seconds = sum(f.seconds[p] for f, p in zip(fronts, points, strict=True))
        yield seconds, sum(w * f.variance[p] for f, p, w in zip(fronts, points, weights, strict=True))


@settings(max_examples=50, deadline=None)
@given(
    rounds=st.lists(problems(groups=2), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=3, max_size=3),
    share=st.floats(0, 1),
)
def test_bound_below_brute_force_below_answer(rounds, weights, share):
    fronts, weights = [exact.front(r) for r in rounds], weights[: len(rounds)]
    points = list(every_choice(fronts, weights))
    least, most = sum(f.seconds[0] for f in fronts), sum(f.seconds[-1] for f in fronts)
    seconds = least + share * (most - least)
    answer = joint.within(fronts, seconds, weights)
    best = min(v for s, v in points if s <= seconds)
    assert answer.seconds <= seconds * (1 + 1e-12)
    assert answer.lower_bound <= best * (1 + 1e-9) and best <= answer.variance * (1 + 1e-9)
    corners = joint._corners(fronts, np.array(weights))
    for lam in LAMBDAS:
        answer = joint.at(fronts, lam, weights)
        assert answer.objective == pytest.approx(
            min(float(corners.score(s, v, lam)) for s, v in points), abs=rounding(corners)
        )
        assert answer.objective - answer.lower_bound <= rounding(corners)


def test_one_budget_beats_one_for_each():
    """Heavy tails backward, even betas forward: the same seconds together, split by what they buy."""
    fronts = [exact.front(lognormal(6, 60, seed=seed, sigma=sigma)) for seed, sigma in enumerate([0.1, 0.1, 2.5, 2.5])]
    separate = [f.at(0.5) for f in fronts]
    together = joint.within(fronts, sum(a.seconds for a in separate))
    assert together.variance < 0.95 * sum(a.variance for a in separate)
    assert together.gap < 5e-3


def test_hull_fronts_keep_their_gap():
    fronts = [hull.front(lognormal(4, 30, seed=s, bits=(1, 2, 4, 8))) for s in range(3)]
    for lam in (0.3, 0.7):
        answer = joint.at(fronts, lam)
        assert 0 <= answer.gap < 0.02
    budget = sum(f.seconds[len(f.seconds) // 2] for f in fronts)
    assert 0 <= joint.within(fronts, budget).gap < 0.02


def test_the_lower_hull():
    draw = np.random.default_rng(0)
    x, y = np.cumsum(draw.uniform(0.1, 1, 300)), -np.cumsum(draw.lognormal(0, 1, 300))
    corners = joint.hull_indices(x, y)
    slopes = np.diff(y[corners]) / np.diff(x[corners])
    assert corners[0] == 0 and corners[-1] == 299 and (np.diff(slopes) > 0).all()
    assert (np.interp(x, x[corners], y[corners]) <= y + 1e-9).all()


def test_refusals():
    fronts = [exact.front(lognormal(2, 3))]
    with pytest.raises(ProblemError, match="no assignment of 1 rounds ends within"):
        joint.within(fronts, 0.0)
    with pytest.raises(ProblemError, match="2 weights for 1 rounds"):
        joint.within(fronts, 1.0, [1.0, 2.0])
    with pytest.raises(ProblemError, match="one round at least"):
        joint.at([], 0.5)


def test_an_epoch_of_rounds_is_quick():
    fronts = [exact.front(lognormal(8, 300, size=10, seed=s)) for s in range(10)]
    begin = time.perf_counter()
    joint.within(fronts, sum(f.seconds[len(f.seconds) // 3] for f in fronts))
    assert time.perf_counter() - begin < 2


def test_the_relaxed_curve_goes_through_its_corners():
    fronts = [exact.front(lognormal(3, 10, seed=s)) for s in range(3)]
    corners = [joint.hull_indices(f.seconds, f.variance) for f in fronts]
    seconds = [f.seconds[c] for f, c in zip(fronts, corners, strict=True)]
    variance = [f.variance[c] for f, c in zip(fronts, corners, strict=True)]
    for end in (0, -1):
        budget = sum(s[end] for s in seconds)
        assert joint._relaxed(seconds, variance, budget) == pytest.approx(sum(v[end] for v in variance), rel=1e-9)
