"""Widths for a whole epoch: a policy applied to every round of every exchange of a workload.

Exchanges are independent problems, as AdaQP has it (section 4.2): 2L - 1 of them, each of N - 1 rounds. The result is
the same workload with other bits, so that epoch.py evaluates what was assigned, messages and all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.epoch import EpochTime, Links, simulate, variance_bound
from simulator.keyed import mix64
from simulator.maxplus import Semantics
from simulator.policy import DEFAULT_BITS, Assignment, RoundProblem, Settings, assign, best_front, rounds_of
from simulator.policy.front import knee_index
from simulator.topology import Topology
from simulator.workload import Exchange, Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assigned:
    """A workload with the widths that a policy gave it. ``gap`` is the largest of any round, certified."""

    workload: Workload
    rounds_s: float  # the objective's own time: the slowest channel of each round, summed
    variance: float
    gap: float
    solve_s: float


def assign_workload(
    workload: Workload,
    costs: PairCosts,
    policy: str,
    *,
    lam: float = 0.5,
    group_size: int = 100,
    bits: tuple[int, ...] = DEFAULT_BITS,
    key: int = 0,
) -> Assigned:
    """Give every message its width. ``lam``: 0 least time, 1 least variance. ProblemError for what can't be posed."""
    solve = partial(assign, policy)
    return _assigned(
        workload,
        [
            [solve(problem, Settings(lam=lam, key=mix64(key, number, step))) for step, problem in enumerate(rounds)]
            for number, rounds in enumerate(problems_of(workload, costs, group_size, bits))
        ],
    )


def problems_of(
    workload: Workload, costs: PairCosts, group_size: int, bits: tuple[int, ...] = DEFAULT_BITS
) -> list[list[RoundProblem]]:
    """The rounds of every exchange as problems; learned coefficients (NaN) count as 1."""
    return [
        rounds_of(
            replace(exchange, alpha_squared=np.nan_to_num(exchange.alpha_squared, nan=1.0)),
            costs.theta_s_per_byte,
            costs.gamma_s,
            group_size,
            bits=bits,
        )
        for exchange in workload.exchanges
    ]


def _assigned(workload: Workload, solved: Sequence[Sequence[Assignment]]) -> Assigned:
    pairs = zip(workload.exchanges, solved, strict=True)
    exchanges = tuple(replace(exchange, bits=_message_bits(exchange, rounds)) for exchange, rounds in pairs)
    found = [one for rounds in solved for one in rounds]
    return Assigned(
        workload=replace(workload, exchanges=exchanges),
        rounds_s=math.fsum(one.seconds for one in found),
        variance=math.fsum(one.variance for one in found),
        gap=max((one.gap for one in found), default=0.0),
        solve_s=math.fsum(one.solve_seconds for one in found),
    )


def _message_bits(exchange: Exchange, solved: Sequence[Assignment]) -> NDArray[np.uint8]:
    """[M] in the order of the workload: by sender, then receiver."""
    bits = exchange.bits.copy()
    ends = np.cumsum(exchange.rows.ravel()).reshape(exchange.rows.shape)
    for one in solved:
        for index, channel in enumerate(one.problem.channels):
            end = int(ends[channel.sender, channel.receiver])
            count = int(exchange.rows[channel.sender, channel.receiver])
            bits[end - count : end] = one.per_message(index)
    return bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """One choice of lambda and group size, evaluated."""

    lam: float
    group_size: int
    epoch: EpochTime
    variance: float
    bits: float  # mean over messages
    solve_s: float
    on_front: bool = False


def tune(
    workload: Workload,
    costs: PairCosts,
    network: PairCosts | Topology,
    *,
    lambdas: Sequence[float],
    group_sizes: Sequence[int],
    semantics: Semantics = "posted",
    links: Links = "apart",
) -> list[Point]:
    """Every lambda with every group size; those on the front have no other that is as fast and as exact."""
    points = []
    for group_size in group_sizes:
        fronts = [[best_front(problem) for problem in rounds] for rounds in problems_of(workload, costs, group_size)]
        for lam in lambdas:  # a front holds the answer to every lambda
            assigned = _assigned(workload, [[front.at(lam) for front in rounds] for rounds in fronts])
            widths = np.concatenate([exchange.bits for exchange in assigned.workload.exchanges])
            points.append(
                Point(
                    lam=lam,
                    group_size=group_size,
                    epoch=simulate(assigned.workload, network, semantics=semantics, links=links),
                    variance=variance_bound(assigned.workload),
                    bits=float(widths.mean()) if len(widths) else 0.0,
                    solve_s=assigned.solve_s,
                )
            )
    return [replace(point, on_front=not any(_beats(other, point) for other in points)) for point in points]


def _beats(a: Point, b: Point) -> bool:
    """No worse in either, better in one."""
    times, variances = (a.epoch.epoch_s, b.epoch.epoch_s), (a.variance, b.variance)
    return (
        times[0] <= times[1] and variances[0] <= variances[1] and (times[0] < times[1] or variances[0] < variances[1])
    )


def knee(points: Sequence[Point]) -> Point:
    """The point of the front farthest below the chord between its ends, log variance over seconds."""
    front = sorted((p for p in points if p.on_front), key=lambda p: (p.epoch.epoch_s, -p.variance))
    seconds, variance = (np.array(of) for of in ([p.epoch.epoch_s for p in front], [p.variance for p in front]))
    return front[knee_index(seconds, variance)]
