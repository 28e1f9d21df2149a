import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.policy import POLICIES, ProblemError, Settings, assign, best_front, solvers
from tests.policy.instances import lognormal, problems, rounding

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


def test_an_unknown_policy_is_refused():
    with pytest.raises(ProblemError, match="there is no policy 'best'; there are adaptive, exact"):
        assign("best", PROBLEM)


def test_solvers_are_imported_when_they_are_used():
    code = "import sys, simulator.policy; sys.exit('pyomo' in sys.modules or 'highspy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
