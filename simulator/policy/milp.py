"""A round as an integer program, for GLPK or HiGHS through Pyomo: the papers' way, and the oracle of ours.

    paper         x_{k,b} = 1 where group k has width b, one b for each k (AdaQP, eq. 12)
    incremental   y_{k,s} = 1 where group k has taken step s to the next width: y_{k,s} >= y_{k,s+1}; and among groups
                  of one channel and size, sorted by beta, y_{k,s} >= y_{k+1,s}: without it, branching meets the
                  same assignment in every order

Solvers stop within absolute tolerances (1e-6 to 1e-9), and one group of thousands moves the score by less: the
objective is normalised by the corners and multiplied by SCALE. What they call their objective is never used: the
bits are rounded, evaluated by problem.py, and bounded by the front's own bound. Betas that differ by 1e9 and more are
beyond any scaling: there the solvers err, and the gap shows it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from simulator.policy.front import Assignment, Corners, assess
from simulator.policy.hull import best_front
from simulator.policy.problem import F64, U8, Channel, Ladder, ProblemError, RoundProblem
from simulator.policy.solvers import SolverName, solve_model

Formulation = Literal["paper", "incremental"]
SCALE = 1e4


def solve(
    problem: RoundProblem,
    lam: float,
    solver: SolverName = "highs",
    formulation: Formulation = "incremental",
    *,
    time_limit_s: float = 60.0,
    relative_gap: float = 1e-4,
    scale: float = SCALE,
) -> Assignment:
    """The solver's best score for ``lam`` within the time; status ``optimal`` means within ``relative_gap``.

    SolverError where the solver is missing or found nothing in time.
    """
    if formulation not in ("paper", "incremental"):
        raise ProblemError(f"there is no formulation {formulation!r}; there are paper and incremental")
    begin = time.perf_counter()
    front = best_front(problem)
    bound = front.least_score(lam)
    model = _model(problem, front.corners, lam, formulation, scale)
    status = solve_model(model, solver, time_limit_s, relative_gap)
    bits = _bits(problem, model, formulation)
    return assess(
        problem,
        bits,
        lambda seconds, variance: float(front.corners.score(seconds, variance, lam)),
        bound,
        solve_seconds=time.perf_counter() - begin,
        solver=f"{solver}, {formulation}",
        status=status,
    )


def _model(problem: RoundProblem, corners: Corners, lam: float, formulation: Formulation, scale: float) -> Any:
    """Variables ``chosen`` [i], channel after channel, group after group, width (or step) after width; and z."""
    import pyomo.environ as pyo

    choices = [_choices(channel, problem.ladder(channel), formulation) for channel in problem.channels]
    ends = np.cumsum([0, *(c.variance.size for c in choices)]).tolist()
    model = pyo.ConcreteModel()
    model.chosen = pyo.Var(range(ends[-1]), domain=pyo.Binary)
    model.z = pyo.Var(domain=pyo.NonNegativeReals)  # normalised seconds
    model.rules = pyo.ConstraintList()
    chosen = list(model.chosen.values())
    weight = scale * lam / corners.span_variance()
    weights = np.concatenate([c.variance.ravel() for c in choices]) * weight
    base = weight * (sum(c.base_variance for c in choices) - corners.utopia_variance)
    model.score = pyo.Objective(expr=linear([*weights.tolist(), scale * (1 - lam)], [*chosen, model.z], base))
    for channel, choice, (begin, end) in zip(problem.channels, choices, pairwise(ends), strict=True):
        own = chosen[begin:end]
        times = (channel.theta_s_per_byte / corners.span_s()) * choice.num_bytes.ravel()
        least = (float(channel.seconds_at(choice.base_bytes)) - corners.utopia_s) / corners.span_s()
        model.rules.add(linear([*times.tolist(), -1.0], [*own, model.z], least) <= 0)
        cells = np.arange(end - begin).reshape(choice.variance.shape)
        if formulation == "paper":
            for row in cells.tolist():
                model.rules.add(linear([1.0] * len(row), [own[i] for i in row]) == 1)
        else:
            for before, after in _order(channel, cells):
                model.rules.add(linear([1.0, -1.0], [own[before], own[after]]) >= 0)
    return model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Choices:
    """What each choice [G, W] of a channel adds to its bytes and variance, and what is there without any.

    A choice is a width; or a step to the next width, one less, and then its variance is negative.
    """

    num_bytes: F64
    variance: F64
    base_bytes: int = 0
    base_variance: float = 0.0


def _choices(channel: Channel, ladder: Ladder, formulation: Formulation) -> _Choices:
    num_bytes = np.outer(channel.groups.size, ladder.bytes).astype(np.float64)
    variance = np.outer(channel.groups.beta, ladder.factors)
    if formulation == "paper":
        return _Choices(num_bytes=num_bytes, variance=variance)
    return _Choices(
        num_bytes=np.diff(num_bytes, axis=1),
        variance=np.diff(variance, axis=1),
        base_bytes=int(num_bytes[:, 0].sum()),
        base_variance=float(variance[:, 0].sum()),
    )


def _order(channel: Channel, cells: Any) -> list[tuple[int, int]]:
    """(i, j) of steps such that j may be taken only after i."""
    pairs = list(zip(cells[:, :-1].ravel().tolist(), cells[:, 1:].ravel().tolist(), strict=True))
    order = np.lexsort((-channel.groups.beta, channel.groups.size))
    for before, after in pairwise(order.tolist()):
        if channel.groups.size[before] == channel.groups.size[after]:
            pairs += zip(cells[before].tolist(), cells[after].tolist(), strict=True)
    return pairs


def _bits(problem: RoundProblem, model: Any, formulation: Formulation) -> tuple[U8, ...]:
    """What the variables mean: the largest x of a group, or its steps up to the first that is not taken."""
    values = np.array([variable.value or 0.0 for variable in model.chosen.values()])
    bits, begin = [], 0
    for channel in problem.channels:
        widths = np.array(problem.ladder(channel).bits, np.uint8)
        shape = (len(channel.groups.size), len(widths) - (formulation == "incremental"))
        own = values[begin : begin + shape[0] * shape[1]].reshape(shape)
        begin += own.size
        level = own.argmax(1) if formulation == "paper" else np.logical_and.accumulate(own > 0.5, axis=1).sum(1)
        bits.append(widths[level])
    return tuple(bits)


def linear(coefficients: list[float], variables: list[Any], constant: float = 0.0) -> Any:
    """constant + coefficients . variables as a Pyomo expression."""
    from pyomo.core.expr import LinearExpression

    return LinearExpression(constant=constant, linear_coefs=coefficients, linear_vars=variables)
