import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.policy import POLICIES, ProblemError, RoundProblem, Settings, assign, best_front, solvers
from tests.policy.instances import LAMBDAS, lognormal, problems, rounding

PROBLEM = lognormal(3, 8, short=3)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_alike(policy):
    solver = policy.removesuffix("-paper")
    if solver in ("glpk", "highs") and not solvers.available(solver):
        pytest.skip(f"the solver {solver} is not installed")
    answer = assign(policy, PROBLEM, Settings(lam=0.3, fixed_bits=4))
    best = best_front(PROBLEM).at(0.3)
    assert answer.seconds == PROBLEM.seconds(answer.bits) and answer.variance == PROBLEM.variance(answer.bits)
    assert answer.lower_bound <= best.objective * (1 + 1e-12)
    assert best.objective <= answer.objective * (1 + 1e-9)
    assert answer.status in ("optimal", "feasible", "heuristic") and answer.solve_seconds > 0


QUICK = ("adaptive", "hull", "uniform", "random", "fixed")


@settings(max_examples=40, deadline=None)
@given(
    problem=problems(channels=4, groups=12, bits=((1, 2, 4, 8), (2, 4, 8)), equal=False),
    lam=st.floats(0, 1),
    key=st.integers(0, 2**40),
)
def test_lower_bounds_hold_against_every_policy(problem, lam, key):
    answers = [assign(policy, problem, Settings(lam=lam, key=key)) for policy in QUICK]
    bound = max(a.lower_bound for a in answers)
    slack = rounding(best_front(problem).corners)
    for answer in answers:
        assert bound <= answer.objective + slack
        assert answer.gap >= 0


@settings(max_examples=60, deadline=None)
@given(
    problem=problems(channels=4, groups=12, bits=((2, 4, 8), (1, 2, 4), (2, 8), (0, 2, 8), (0, 8, 32))),
    lam=st.floats(0, 1),
    data=st.data(),
)
def test_no_widths_whatever_beat_exact(problem, lam, data):
    """Any assignment is a feasible one: its score is above the exact one, which is above the relaxation's bound."""
    best, bound = assign("exact", problem, Settings(lam=lam)), assign("hull", problem, Settings(lam=lam)).lower_bound
    slack, corners = rounding(best_front(problem).corners), best_front(problem).corners
    assert bound <= best.objective + slack
    width = st.sampled_from(problem.bits)
    counts = [len(c.groups.size) for c in problem.channels]
    for _ in range(5):
        drawn = [np.array(data.draw(st.lists(width, min_size=n, max_size=n)), np.uint8) for n in counts]
        score = float(corners.score(problem.seconds(drawn), problem.variance(drawn), lam))
        assert best.objective <= score + slack


@settings(max_examples=60, deadline=None)
@given(problem=problems(channels=4, groups=12), lam=st.sampled_from(LAMBDAS), data=st.data())
def test_ranks_by_other_names_get_the_same_widths(problem, lam, data):
    """Channels in any order, ranks under any names: the same seconds and variance, and the same widths a channel."""
    order = data.draw(st.permutations(range(len(problem.channels))))
    named = [replace(problem.channels[i], sender=7 - i, receiver=20 + i) for i in order]
    other = RoundProblem(channels=tuple(named), bits=problem.bits)
    for policy in ("exact", "hull"):
        one, two = (assign(policy, p, Settings(lam=lam)) for p in (problem, other))
        assert (two.seconds, two.variance) == (one.seconds, one.variance)
        assert [b.tolist() for b in two.bits] == [one.bits[i].tolist() for i in order]


def test_an_unknown_policy_is_refused():
    with pytest.raises(ProblemError, match="there is no policy 'best'; there are adaptive, exact"):
        assign("best", PROBLEM)


def test_solvers_are_imported_when_they_are_used():
    code = "import sys, simulator.policy; sys.exit('pyomo' in sys.modules or 'highspy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
