"""One budget across rounds: of a layer, of an epoch, of both directions.

Seconds of rounds add, and so do variances (weighted, if a layer's noise counts more). Rows differ in what a byte buys:
forward rows after a normalisation have nearly equal ranges, gradients have heavy tails; so a second taken from one
exchange can be worth more in another.

    for a lambda     the scores are sums over rounds: each takes its own best point, nothing is left open
    within a time    multiply the seconds by a price; every round takes the best point of its convex hull at that price,
                     and the price is raised until the sum fits (Everett 1963); what remains of the time buys further
                     points of the exact fronts. No choice of points has less than the hulls' own curve at that time
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.policy.front import Assignment, Corners, Front, check_lambda
from simulator.policy.problem import F64, I64, ProblemError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointAssignment:
    """An assignment for each round and what they sum to. ``gap`` is relative to the objective.

    ``objective`` is the score for a lambda, or the weighted variance within a time.
    """

    rounds: tuple[Assignment, ...]
    seconds: float
    variance: float
    objective: float
    lower_bound: float
    gap: float
    solve_seconds: float


def at(
    fronts: Sequence[Front],
    lam: float,
    weights: Sequence[float] | None = None,
    free_s: Sequence[float] | None = None,
) -> JointAssignment:
    """Least lambda * sum of variances + (1 - lambda) * sum of seconds, both normalised by their sums' corners.

    ``free_s``: of each round, the seconds that are paid for anyway.
    """
    begin = time.perf_counter()
    check_lambda(lam)
    weight = _weights(fronts, weights)
    free = [0.0] * len(fronts) if free_s is None else free_s
    corners = _corners(fronts, weight)
    price_s, price_variance = (1 - lam) / corners.span_s(), lam / corners.span_variance()
    rounds = [
        front.priced(price_s, w * price_variance, paid)
        for front, w, paid in zip(fronts, weight.tolist(), free, strict=True)
    ]
    value = math.fsum(one.objective for one in rounds)
    return _joined(fronts, rounds, weight, math.fsum(one.lower_bound for one in rounds), begin, lambda *_: value)


def within(fronts: Sequence[Front], seconds: float, weights: Sequence[float] | None = None) -> JointAssignment:
    """Least sum of variances of rounds that take at most ``seconds`` together. ProblemError if none do."""
    begin = time.perf_counter()
    weight = _weights(fronts, weights)
    least = sum(float(f.seconds[0]) for f in fronts)
    if seconds < least:
        raise ProblemError(f"no assignment of {len(fronts)} rounds ends within {seconds:.6g} s: least is {least:.6g} s")
    hulls = [hull_indices(f.seconds, f.variance) for f in fronts]
    picked = _spend(fronts, hulls, weight, seconds)
    corners = [hull_indices(f.seconds, f.bound) for f in fronts]
    bound = _relaxed(
        [f.seconds[c] for f, c in zip(fronts, corners, strict=True)],
        [w * f.bound[c] for f, c, w in zip(fronts, corners, weight, strict=True)],
        seconds,
    )
    rounds = [f.least_variance_within(float(f.seconds[p])) for f, p in zip(fronts, picked, strict=True)]
    return _joined(fronts, rounds, weight, bound, begin, lambda _, variance: variance)


def hull_indices(x: F64, y: F64) -> I64:
    """Indices of the lower convex hull of points with rising x and falling y."""
    left = np.arange(len(x))
    while len(left) > 2:  # no corner of a hull lies above the line between two other points: drop those at once
        slopes = np.diff(y[left]) / np.diff(x[left])
        convex = np.concatenate([[True], np.diff(slopes) > 0, [True]])
        few = convex.mean() > 0.9
        left = left[convex]
        if few:
            break
    kept: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for i in left.tolist():
        while len(kept) > 1:
            a, b = kept[-2:]
            if (ys[a] - ys[b]) * (xs[i] - xs[b]) > (ys[b] - ys[i]) * (xs[b] - xs[a]):
                break
            kept.pop()
        kept.append(i)
    return np.array(kept)


def _edges(seconds: list[F64], variance: list[F64]) -> tuple[I64, I64, F64, F64]:
    """All hulls' edges, most variance per second first: (which hull, which edge of it, seconds, variance saved)."""
    owner = np.repeat(np.arange(len(seconds)), [len(s) - 1 for s in seconds])
    edge = np.concatenate([np.arange(len(s) - 1) for s in seconds])
    cost, gain = np.concatenate([np.diff(s) for s in seconds]), np.concatenate([-np.diff(v) for v in variance])
    order = np.argsort(-gain / cost, kind="stable")
    return owner[order], edge[order], cost[order], gain[order]


def _relaxed(seconds: list[F64], variance: list[F64], budget_s: float) -> float:
    """The sum of the hulls' curves, its least value within the budget."""
    _, _, cost, gain = _edges(seconds, variance)
    spent = sum(float(s[0]) for s in seconds) + np.concatenate([[0.0], np.cumsum(cost)])
    remaining = np.cumsum(np.concatenate([[sum(float(v[-1]) for v in variance)], gain[::-1]]))[::-1]
    return float(np.interp(budget_s, spent, remaining))


def _spend(fronts: Sequence[Front], hulls: list[I64], weight: F64, budget_s: float) -> list[int]:
    """A point of each front: along the hulls while they fit, then the best further points for what is left."""
    owner, edge, cost, _ = _edges(
        [f.seconds[h] for f, h in zip(fronts, hulls, strict=True)],
        [w * f.variance[h] for f, h, w in zip(fronts, hulls, weight, strict=True)],
    )
    picked = [0] * len(fronts)
    spare = budget_s - sum(float(f.seconds[0]) for f in fronts)
    for o, e, c in zip(owner.tolist(), edge.tolist(), cost.tolist(), strict=True):
        if c > spare:
            break
        spare -= c
        picked[o] = int(hulls[o][e + 1])
    _fill(fronts, picked, weight, budget_s)
    return picked


def _fill(fronts: Sequence[Front], picked: list[int], weight: F64, budget_s: float) -> None:
    """Move one round at a time to the point that saves most within what is left, until none saves any."""
    while True:
        spare = budget_s - sum(float(f.seconds[p]) for f, p in zip(fronts, picked, strict=True))
        best, best_gain = (0, 0), 0.0
        for index, front in enumerate(fronts):
            now = picked[index]
            reach = int(np.searchsorted(front.seconds, front.seconds[now] + spare, "right")) - 1
            while reach > now and front.seconds[reach] - front.seconds[now] > spare:
                reach -= 1  # the sum above was rounded up
            gain = float(weight[index] * (front.variance[now] - front.variance[reach])) if reach > now else 0.0
            if gain > best_gain:
                best, best_gain = (index, reach), gain
        if not best_gain:
            return
        picked[best[0]] = best[1]


def _joined(
    fronts: Sequence[Front],
    rounds: Sequence[Assignment],
    weight: F64,
    bound: float,
    begin: float,
    objective: Callable[[float, float], float],
) -> JointAssignment:
    seconds = math.fsum(a.seconds for a in rounds)
    variance = math.fsum(w * a.variance for w, a in zip(weight.tolist(), rounds, strict=True))
    value = objective(seconds, variance)
    bound = min(bound, value)
    return JointAssignment(
        rounds=tuple(rounds),
        seconds=seconds,
        variance=variance,
        objective=value,
        lower_bound=bound,
        gap=(value - bound) / abs(value) if value else 0.0,
        solve_seconds=math.fsum(f.solve_seconds for f in fronts) + time.perf_counter() - begin,
    )


def _weights(fronts: Sequence[Front], weights: Sequence[float] | None) -> F64:
    if not fronts:
        raise ProblemError("a joint budget needs one round at least")
    if weights is None:
        return np.ones(len(fronts))
    if len(weights) != len(fronts) or not all(math.isfinite(w) and w >= 0 for w in weights):
        raise ProblemError(f"{len(weights)} weights for {len(fronts)} rounds; one each, finite and >= 0")
    return np.array(weights, np.float64)


def _corners(fronts: Sequence[Front], weight: F64) -> Corners:
    """Sums of the rounds' corners."""
    return Corners(
        utopia_s=math.fsum(f.corners.utopia_s for f in fronts),
        nadir_s=math.fsum(f.corners.nadir_s for f in fronts),
        utopia_variance=math.fsum(w * f.corners.utopia_variance for w, f in zip(weight, fronts, strict=True)),
        nadir_variance=math.fsum(w * f.corners.nadir_variance for w, f in zip(weight, fronts, strict=True)),
    )
