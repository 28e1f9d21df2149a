"""The whole Pareto front of a round, exactly, without an integer program.

For a fixed makespan Z the channels separate. Groups of one channel have equally long rows and, but for one short
group, equal sizes; so widths fall with beta and a channel is two counts: the p groups of largest beta get the second
width at least, the first q of them the third. With widths 2, 4, 8 a first step costs c bytes a message and a
second one k c, k = 2:

    channel variance = f0 sum(beta) - g1 sum(beta[:p]) - g2 sum(beta[:q]),   g1 = 1/9 - 1/225, g2 = 1/225 - 1/65025

For a budget of u units of c bytes: p + k q = u. For the u of one remainder modulo k, p moves in steps of k and q in
steps of 1. Both gains are concave, and the best split of a sum of two concave sequences takes the larger increment
first: the best q of every u comes from merging two sorted lists. The short group has its width outside of the count, so
a channel is the best of three such profiles, shifted.

With f_i(Z) for each channel, their sum F(Z) is a falling step function; its breakpoints merged are the front.
O(M log M) for M groups. Where k is no whole number (rows that don't fill whole bytes), all (p, q) are gone through.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from simulator.policy.front import Assignment, Front, corners_of
from simulator.policy.problem import F64, I64, U8, Channel, Ladder, ProblemError, RoundProblem

EQUAL = 1e-14  # variances of equal betas, added in another order, differ by roundings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """What a channel's variance can be for its seconds: P points, seconds rising, variance falling.

    ``counts`` [P, 2]: groups at the second and at the third width at least; ``odd_step`` [P]: the odd group's width.
    """

    seconds: F64
    variance: F64
    counts: I64
    odd_step: I64
    order: I64  # the groups of the count, largest beta first
    odd: int | None
    widths: tuple[int, ...]

    def bits(self, index: int) -> U8:
        """[G] bits at point ``index``."""
        bits = np.full(len(self.order) + (self.odd is not None), self.widths[0], np.uint8)
        for step, count in enumerate(self.counts[index], 1):
            if count:
                bits[self.order[:count]] = self.widths[step]
        if self.odd is not None:
            bits[self.odd] = self.widths[int(self.odd_step[index])]
        return bits


def applies(problem: RoundProblem) -> bool:
    """Whether this solver can: at most three widths worth giving, and sizes equal but for one group per channel."""
    return all(len(problem.ladder(c).bits) <= 3 and _odd_group(c.groups.size) != _SEVERAL for c in problem.channels)


def front(problem: RoundProblem) -> Front:
    """Every (seconds, variance) worth having. ProblemError where applies() is false."""
    begin = time.perf_counter()
    profiles = [profile(channel, problem.ladder(channel)) for channel in problem.channels]
    seconds, variance = _merge(profiles)

    def choose(budget_s: float) -> tuple[U8, ...]:
        return tuple(p.bits(int(np.searchsorted(p.seconds, budget_s, "right")) - 1) for p in profiles)

    return Front(
        problem=problem,
        seconds=seconds,
        variance=variance,
        bound=variance,
        corners=corners_of(problem, float(variance[0])),
        choose=choose,
        exact=True,
        solver="exact",
        solve_seconds=time.perf_counter() - begin,
    )


def solve(problem: RoundProblem, lam: float) -> Assignment:
    """The least score for ``lam``."""
    return front(problem).at(lam)


def profile(channel: Channel, ladder: Ladder) -> Profile:
    """A channel by itself."""
    groups = channel.groups
    odd = _odd_group(groups.size)
    if len(ladder.bits) > 3 or odd == _SEVERAL:
        raise ProblemError(
            f"channel {channel.sender} -> {channel.receiver} has {len(ladder.bits)} widths and groups of "
            f"{len(np.unique(groups.size))} sizes; the exact solver takes 3 widths and equal sizes but for one group: "
            "use the policy hull"
        )
    order = np.argsort(-groups.beta, kind="stable")
    if odd is not None:
        order = order[order != odd]
    beta = groups.beta[order]
    counts = _worthwhile_counts(beta, ladder)
    size = int(groups.size[order[0]]) if len(order) else 0
    num_bytes, variance = _count_costs(beta, counts, ladder, size)
    odd_step = np.zeros(len(counts), np.int64)
    if odd is not None:
        steps = range(len(ladder.bits))
        odd_step = np.repeat(np.array(steps), len(counts))
        num_bytes = np.concatenate([num_bytes + int(groups.size[odd]) * ladder.bytes[step] for step in steps])
        variance = np.concatenate([variance + groups.beta[odd] * ladder.factors[step] for step in steps])
        counts = np.tile(counts, (len(steps), 1))
    kept = _pareto(num_bytes, variance)
    return Profile(
        seconds=channel.seconds_at(num_bytes[kept]),
        variance=variance[kept],
        counts=counts[kept],
        odd_step=odd_step[kept],
        order=order,
        odd=odd,
        widths=ladder.bits,
    )


_SEVERAL = -1


def _odd_group(size: I64) -> int | None:
    """The one group whose size differs; None if there is none, _SEVERAL if there are more."""
    if len(size) == 0 or (size == size[0]).all():
        return None
    if (size[:-1] == size[0]).all():
        return len(size) - 1
    sizes, index, counts = np.unique(size, return_index=True, return_counts=True)
    return int(index[np.argmin(counts)]) if len(sizes) == 2 and counts.min() == 1 else _SEVERAL


def _worthwhile_counts(beta: F64, ladder: Ladder) -> I64:
    """[P, 2] (p, q), among them the best ones of every budget. ``beta`` falls."""
    n, steps = len(beta), len(ladder.bits) - 1
    if steps < 2:
        counts = np.zeros((n * steps + 1, 2), np.int64)
        counts[:, 0] = np.arange(n * steps + 1)
        return counts
    first, second = np.diff(ladder.bytes).tolist()
    first_gain, second_gain = -np.diff(ladder.factors)
    if second % first == 0 and first_gain >= second_gain:
        return _merged_counts(beta, second // first, float(first_gain), float(second_gain))
    return _all_counts(beta, first, second, ladder)


def _merged_counts(beta: F64, k: int, first_gain: float, second_gain: float) -> I64:
    """For every budget u of 0..(1 + k) n the best p + k q = u: two sorted lists merged for each remainder of u.

    Ties go to first steps, and a first step gains at least as much: so p >= q comes by itself.
    """
    n = len(beta)
    budget = np.arange((1 + k) * n + 1)
    q = np.empty_like(budget)
    padded = np.concatenate([beta, np.zeros(k)])
    falling_second = -second_gain * beta
    for remainder in range(k):
        strides = max(0, -(-(n - remainder) // k))
        firsts = first_gain * padded[remainder : remainder + k * strides].reshape(strides, k).sum(1)
        place = np.arange(n) + np.searchsorted(-firsts, falling_second, "right")
        q[remainder::k] = np.searchsorted(place, np.arange(len(budget[remainder::k])), "left")
    return np.stack([np.minimum(budget - k * q, n), q], axis=1)


def _all_counts(beta: F64, first: int, second: int, ladder: Ladder) -> I64:
    """The best of all (p, q) of every number of bytes: O(n^2) for rows whose steps have no common measure."""
    n = len(beta)
    unit = int(np.gcd(first, second))
    first, second = first // unit, second // unit
    tails = _tails(beta)
    f0, f1, f2 = ladder.factors
    best = np.full(n * (first + second) + 1, np.inf)
    best_q = np.zeros(len(best), np.int64)
    for q in range(n + 1):
        cells = slice(q * (first + second), n * first + q * second + 1, first)
        variance = (f0 - f1) * tails[q:] + (f1 - f2) * tails[q]
        better = variance < best[cells]
        best[cells][better] = variance[better]
        best_q[cells][better] = q
    reached = np.flatnonzero(np.isfinite(best))
    q_reached = best_q[reached]
    return np.stack([(reached - q_reached * second) // first, q_reached], axis=1)


def _tails(beta: F64) -> F64:
    """[n + 1] sums of beta[i:]. Added from the small end: differences of prefix sums would lose the small ones."""
    return np.concatenate([np.cumsum(beta[::-1])[::-1], [0.0]])


def _count_costs(beta: F64, counts: I64, ladder: Ladder, size: int) -> tuple[I64, F64]:
    """Bytes and variance of (p, q) groups at the higher widths."""
    tails, n = _tails(beta), len(beta)
    num_bytes = np.full(len(counts), size * n * ladder.bytes[0])
    variance = np.full(len(counts), ladder.factors[-1] * tails[0])
    for step in range(len(ladder.bits) - 1):
        num_bytes += size * (ladder.bytes[step + 1] - ladder.bytes[step]) * counts[:, step]
        variance += (ladder.factors[step] - ladder.factors[step + 1]) * tails[counts[:, step]]
    return num_bytes, variance


def _pareto(num_bytes: I64, variance: F64) -> I64:
    """Indices of the points that no other one beats, bytes rising. Of equal ones the first."""
    order = np.argsort(num_bytes, kind="stable")  # merges the sorted runs that it is given
    falling = variance[order]
    better = np.ones(len(order), bool)
    better[1:] = falling[1:] < np.minimum.accumulate(falling)[:-1] * (1 - EQUAL)
    order = order[better]
    last = np.ones(len(order), bool)
    last[:-1] = np.diff(num_bytes[order]) > 0
    return order[last]


def _merge(profiles: list[Profile]) -> tuple[F64, F64]:
    """(seconds, variance) of the round: the sum of the channels' variances at every makespan."""
    least = max(float(p.seconds[0]) for p in profiles)
    starts = [int(np.searchsorted(p.seconds, least, "right")) - 1 for p in profiles]
    times = np.concatenate([p.seconds[start + 1 :] for p, start in zip(profiles, starts, strict=True)])
    drops = np.concatenate([-np.diff(p.variance[start:]) for p, start in zip(profiles, starts, strict=True)])
    order = np.argsort(times, kind="stable")
    seconds = np.concatenate([[least], times[order]])
    # From the small end, as in _tails
    remaining = np.cumsum(np.concatenate([[sum(float(p.variance[-1]) for p in profiles)], drops[order][::-1]]))
    variance = remaining[::-1]
    last = np.append(np.diff(seconds) > 0, True)
    seconds, variance = seconds[last], variance[last]
    first = np.append(True, np.diff(variance) < 0)
    return seconds[first], variance[first]
