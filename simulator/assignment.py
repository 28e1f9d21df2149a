"""Widths for a whole epoch: a policy applied to every exchange of a workload.

Exchanges are independent problems, as AdaQP has it (section 4.2): 2L - 1 of them, each of N - 1 rounds. Or, beyond the
paper, they share one budget of time, so that a second goes where it buys most. The result is the same workload with
other bits, so that epoch.py evaluates what was assigned, messages and all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from simulator.cost import PairCosts
from simulator.epoch import EpochTime, Links, flight, simulate, variance_bound
from simulator.exchanges import (
    Budget,
    ExchangeAssignment,
    assign_exchange,
    assign_together,
    at_front,
    at_fronts,
    fronts_of,
    joined,
    messages_of,
    of_ring,
    problems_of,
)
from simulator.keyed import mix64
from simulator.maxplus import Semantics
from simulator.policy import DEFAULT_BITS, RoundProblem, best_front, ring_lp
from simulator.policy.front import knee_index
from simulator.policy.solvers import available
from simulator.topology import Topology
from simulator.workload import Exchange, Workload

LARGEST_RING = 20_000  # groups of a ring that ``auto`` still gives to the linear program: seconds there
EQUAL = 1e-9  # relative: times this close are the same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assigned:
    """A workload with the widths that a policy gave it. ``gap`` is the largest of any problem, certified.

    ``policy`` is the one that chose (``auto`` takes another's), ``reason`` says why, ``predicted_s`` what was compared:
    the seconds of all exchanges by policy, at equal variance.
    """

    workload: Workload
    exchanges: tuple[ExchangeAssignment, ...]
    rounds_s: float  # as the policy counts: for policies of rounds, the slowest channel of each round, summed
    variance: float
    gap: float
    solve_s: float
    policy: str
    reason: str = ""
    predicted_s: dict[str, float] = field(default_factory=dict)


def assign_workload(
    workload: Workload,
    costs: PairCosts,
    policy: str,
    *,
    lam: float = 0.5,
    group_size: int = 100,
    bits: tuple[int, ...] = DEFAULT_BITS,
    key: int = 0,
    semantics: Semantics = "barrier",
    hidden_s: Sequence[float] | None = None,
    budget: Budget = "each",
) -> Assigned:
    """Give every message its width. ``lam``: 0 least time, 1 least variance. ProblemError for what can't be posed.

    ``semantics`` of the ring: ``auto`` chooses by it, and ``random`` spends what a posted ring allows at once.
    ``hidden_s``: for each exchange, how long its messages travel for nothing. ``budget``: joint goes with the policies
    that know fronts; ``auto`` chooses among those then.
    """
    hidden = hidden_s if hidden_s is not None else [0.0] * len(workload.exchanges)
    reason = "as configured"
    predicted: dict[str, float] = {}
    if policy == "auto":
        policy, reason, predicted = choose(workload, costs, lam, group_size, bits, semantics, hidden, budget)
    if budget == "joint":
        together = assign_together(
            workload.exchanges, costs, policy, lam=lam, group_size=group_size, bits=bits, hidden_s=hidden
        )
        return replace(_assigned(workload, together, policy), reason=reason, predicted_s=predicted)
    at_once = policy == "random" and semantics == "posted"
    solved = [
        assign_exchange(
            exchange, costs, policy, lam=lam, group_size=group_size, bits=bits, key=mix64(key, number), hidden_s=free,
            at_once=at_once,
        )
        for number, (exchange, free) in enumerate(zip(workload.exchanges, hidden, strict=True))
    ]  # fmt: skip
    return replace(_assigned(workload, solved, policy), reason=reason, predicted_s=predicted)


def _assigned(workload: Workload, solved: Sequence[ExchangeAssignment], policy: str) -> Assigned:
    pairs = zip(workload.exchanges, solved, strict=True)
    return Assigned(
        workload=replace(workload, exchanges=tuple(replace(exchange, bits=one.bits) for exchange, one in pairs)),
        exchanges=tuple(solved),
        rounds_s=math.fsum(one.seconds for one in solved),
        variance=math.fsum(one.variance for one in solved),
        gap=max((one.gap for one in solved), default=0.0),
        solve_s=math.fsum(one.solve_s for one in solved),
        policy=policy,
    )


def choose(
    workload: Workload,
    costs: PairCosts,
    lam: float,
    group_size: int,
    bits: tuple[int, ...],
    semantics: Semantics,
    hidden_s: Sequence[float],
    budget: Budget = "each",
) -> tuple[str, str, dict[str, float]]:
    """Which policy the simulated ring is fastest with, why, and every policy's seconds of all exchanges.

    Compared with a budget for each exchange, whatever ``budget`` is.

    At equal variance: ``adaptive`` chooses for ``lam`` round by round, and the others spend no more variance than it
    on each exchange. Seconds that hide behind the central product count as what hides them.
    """
    seconds = {"adaptive": 0.0, "posted": 0.0}
    left_out = _no_ring_lp(workload, group_size, semantics) or ("it has no joint budget" if budget == "joint" else "")
    if not left_out:
        seconds["ring_lp"] = 0.0
    for exchange, free in zip(workload.exchanges, hidden_s, strict=True):
        rounds = problems_of(exchange, costs, group_size, bits)
        if not rounds:
            continue
        by_rounds = joined(exchange, at_front([best_front(problem) for problem in rounds], lam, free))
        front = best_front(problems_of(exchange, costs, group_size, bits, at_once=True)[0])
        at_once = joined(exchange, [front.least_time_within(max(by_rounds.variance, float(front.variance[-1])))])
        candidates = {"adaptive": by_rounds, "posted": at_once}
        if "ring_lp" in seconds:
            candidates["ring_lp"] = _ring_at_most(exchange, rounds, by_rounds)
        for name, candidate in candidates.items():
            seconds[name] += max(flight_s(exchange, candidate, costs, semantics), free)
    best = "adaptive"
    for name, value in seconds.items():
        if value < seconds[best] * (1 - EQUAL):
            best = name
    told = ", ".join(f"{name} {value:.3g} s" for name, value in seconds.items())
    alone = ", each exchange by itself" if budget == "joint" else ""
    reason = f"least seconds of all exchanges in a simulated {semantics} ring at equal variance{alone}: {told}"
    return best, reason + (f"; ring_lp not tried: {left_out}" if left_out else ""), seconds


def flight_s(exchange: Exchange, assigned: ExchangeAssignment, costs: PairCosts, semantics: Semantics) -> float:
    """Simulated seconds until the last rank has all, every rank starting at once."""
    start = np.zeros(len(exchange.rows))
    return float(flight(replace(exchange, bits=assigned.bits), costs, start, semantics, "apart").max(initial=0.0))


def _no_ring_lp(workload: Workload, group_size: int, semantics: Semantics) -> str:
    """Why the linear program has nothing to say here; empty: it has."""
    if semantics == "posted":
        return "messages posted at once wait for no round"
    if semantics == "barrier":
        return "barriers make rounds independent"
    if not available("highs"):
        return "highspy is not installed"
    groups = max((int(np.ceil(e.rows / group_size).sum()) for e in workload.exchanges), default=0)
    return f"{groups:,} groups are too many" if groups > LARGEST_RING else ""


def _ring_at_most(exchange: Exchange, rounds: list[RoundProblem], reference: ExchangeAssignment) -> ExchangeAssignment:
    """The linear program's widths within the ring time of ``reference``; the reference where they are less exact."""
    ranks, bits = len(exchange.rows), []
    for problem in rounds:
        of_round = []
        for channel in problem.channels:
            messages = reference.bits[messages_of(exchange, channel.sender, channel.receiver)]
            widths = np.zeros(len(channel.groups.size), np.uint8)
            widths[channel.groups.group_of] = messages
            of_round.append(widths)
        bits.append(tuple(of_round))
    solved = ring_lp.within(rounds, ranks, ring_lp.ring_seconds(rounds, tuple(bits), ranks))
    return of_ring(exchange, solved) if solved.variance <= reference.variance * (1 + EQUAL) else reference


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
    policy: str = "adaptive",
    hidden_s: Sequence[float] | None = None,
    budget: Budget = "each",
) -> list[Point]:
    """Every lambda with every group size; those on the front have no other that is as fast and as exact.

    ``policy``: one that knows fronts (exchanges.JOINT). ``hidden_s``: for each exchange, how long its messages travel
    for nothing.
    """
    points = []
    free = hidden_s if hidden_s is not None else [0.0] * len(workload.exchanges)
    for group_size in group_sizes:
        fronts = [fronts_of(exchange, costs, policy, group_size) for exchange in workload.exchanges]
        for lam in lambdas:  # a front holds the answer to every lambda
            solved = [
                joined(exchange, rounds)
                for exchange, rounds in zip(
                    workload.exchanges, at_fronts(fronts, lam, free, policy, budget), strict=True
                )
            ]
            assigned = _assigned(workload, solved, policy)
            widths = np.concatenate([np.empty(0), *(exchange.bits for exchange in assigned.workload.exchanges)])
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
    return marked(points)


class Evaluated(Protocol):
    """A choice whose epoch and variance are known."""

    @property
    def epoch(self) -> EpochTime: ...

    @property
    def variance(self) -> float: ...

    @property
    def on_front(self) -> bool: ...


E = TypeVar("E", bound=Evaluated)


def marked(choices: Sequence[E]) -> list[E]:
    """With ``on_front`` set for those that no other one beats."""
    return [replace(one, on_front=not any(_beats(other, one) for other in choices)) for one in choices]  # type: ignore[type-var]


def _beats(a: Evaluated, b: Evaluated) -> bool:
    """No worse in either, better in one."""
    times, variances = (a.epoch.epoch_s, b.epoch.epoch_s), (a.variance, b.variance)
    return (
        times[0] <= times[1] and variances[0] <= variances[1] and (times[0] < times[1] or variances[0] < variances[1])
    )


def knee(points: Sequence[E]) -> E:
    """The point of the front farthest below the chord between its ends, log variance over seconds."""

    def order(point: E) -> tuple[float, float, float]:
        # of equal ones the largest groups, which are the least to solve; fixed widths have none and come first
        return point.epoch.epoch_s, point.variance, -float(getattr(point, "group_size", math.inf))

    every = sorted((p for p in points if p.on_front), key=order)
    front = every[:1]  # each place once
    front += [p for before, p in pairwise(every) if p.epoch.epoch_s > before.epoch.epoch_s]
    seconds, variance = (np.array(of) for of in ([p.epoch.epoch_s for p in front], [p.variance for p in front]))
    return front[knee_index(seconds, variance)]
