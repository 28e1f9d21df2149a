"""Policies by name: a round and settings in, an assignment out. The same objects offline and while training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.policy import exact, hull, milp, simple
from simulator.policy.front import Assignment
from simulator.policy.problem import ProblemError, RoundProblem
from simulator.policy.solvers import SolverName


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a policy may want to know beside the round."""

    lam: float = 0.5
    """0: least time, 1: least variance."""
    key: int = 0
    """Of the draws of ``uniform`` and ``random``: fold in seed, layer, direction and epoch."""
    fixed_bits: int = 8
    """The width of ``fixed``."""
    time_limit_s: float = 60.0
    """Of an integer program."""
    relative_gap: float = 1e-4
    """At which an integer program is done."""


Policy = Callable[[RoundProblem, Settings], Assignment]


def _milp(solver: SolverName, formulation: milp.Formulation) -> Policy:
    return lambda problem, settings: milp.solve(
        problem,
        settings.lam,
        solver,
        formulation,
        time_limit_s=settings.time_limit_s,
        relative_gap=settings.relative_gap,
    )


POLICIES: dict[str, Policy] = {
    "adaptive": lambda problem, settings: hull.best_front(problem).at(settings.lam),
    "exact": lambda problem, settings: exact.solve(problem, settings.lam),
    "hull": lambda problem, settings: hull.solve(problem, settings.lam),
    "glpk": _milp("glpk", "incremental"),
    "glpk-paper": _milp("glpk", "paper"),
    "highs": _milp("highs", "incremental"),
    "highs-paper": _milp("highs", "paper"),
    "uniform": lambda problem, settings: simple.uniform(problem, settings.lam, settings.key),
    "random": lambda problem, settings: simple.random(problem, settings.lam, settings.key),
    "fixed": lambda problem, settings: simple.fixed(problem, settings.lam, settings.fixed_bits),
}
"""``adaptive`` is exact where that applies and hull elsewhere."""


def assign(policy: str, problem: RoundProblem, settings: Settings | None = None) -> Assignment:
    """Widths of a round by the policy of this name. ProblemError, SolverError."""
    if policy not in POLICIES:
        raise ProblemError(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
    return POLICIES[policy](problem, settings or Settings())
