"""The front of a round for any widths and any group sizes, near the optimum and with a certified gap.

A channel is a multiple-choice knapsack: one width for each group. Let widths be mixed (the linear relaxation) and the
best mixtures lie on the lower convex hull of a group's (bytes, variance): steps of falling worth per byte,

    worth = beta / size * (fall of the variance factor) / (rise of the bytes of a message),

and a channel takes its steps in the order of worth. Taken whole, they are an assignment; the last one taken in
part, they are the relaxation, a convex curve that no assignment lies below. Summed over channels at equal times:
front and bound. What the order of worth leaves of a budget is filled with the next steps that fit.

Kellerer, Pferschy, Pisinger, "Knapsack Problems", chapter 11.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from simulator.policy import exact
from simulator.policy.front import Assignment, Front, corners_of
from simulator.policy.problem import F64, I64, U8, Channel, Ladder, RoundProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """A channel's steps in the order of worth: S steps, each lifts one group to the next width of the hull.

    ``seconds`` and ``variance`` [S + 1] of the channel after so many steps.
    """

    channel: Channel
    group: I64  # [S]
    num_bytes: I64  # [S]
    least_bytes: int
    seconds: F64
    variance: F64
    widths: tuple[int, ...]

    def taken(self, budget_s: float) -> int:
        """How many steps end within the budget, in their order."""
        return int(np.searchsorted(self.seconds, budget_s, "right")) - 1

    def bits(self, budget_s: float) -> U8:
        """[G] bits that end within the budget: the steps in their order, then those that still fit."""
        taken = self.taken(budget_s)
        level = np.bincount(self.group[:taken], minlength=len(self.channel.groups.size))
        num_bytes = self.least_bytes + int(self.num_bytes[:taken].sum())
        smallest = np.minimum.accumulate(self.num_bytes[::-1])[::-1]
        blocked = np.zeros(len(level), bool)
        for step in range(taken, len(self.group)):
            if self.channel.seconds_at(num_bytes + int(smallest[step])) > budget_s:
                break
            group, cost = self.group[step], int(self.num_bytes[step])
            if blocked[group] or self.channel.seconds_at(num_bytes + cost) > budget_s:
                blocked[group] = True  # its later steps come on top of this one
                continue
            level[group] += 1
            num_bytes += cost
        return np.array(self.widths, np.uint8)[level]


def front(problem: RoundProblem) -> Front:
    """Points that assignments reach, and the bound of the relaxation at their times."""
    begin = time.perf_counter()
    steps = [steps_of(channel, problem.ladder(channel)) for channel in problem.channels]
    seconds, variance, bound = _merge(steps)

    def choose(budget_s: float) -> tuple[U8, ...]:
        return tuple(s.bits(budget_s) for s in steps)

    if exact.applies(problem):
        nadir = float(exact.front(problem).variance[0])
    else:
        nadir = problem.variance(choose(float(seconds[0])))
    return Front(
        problem=problem,
        seconds=seconds,
        variance=variance,
        bound=bound,
        corners=corners_of(problem, nadir),
        choose=choose,
        exact=False,
        solver="hull",
        solve_seconds=time.perf_counter() - begin,
    )


def solve(problem: RoundProblem, lam: float) -> Assignment:
    """A score near the least for ``lam``, with the gap that may remain."""
    return front(problem).at(lam)


def best_front(problem: RoundProblem) -> Front:
    """The exact front where the exact solver can, else this one."""
    return exact.front(problem) if exact.applies(problem) else front(problem)


def steps_of(channel: Channel, ladder: Ladder) -> Steps:
    """A channel's steps, sorted; steps that gain nothing are left out."""
    groups, corners = channel.groups, _hull(ladder)
    rise = np.diff([ladder.bytes[c] for c in corners])
    fall = -np.diff([ladder.factors[c] for c in corners])
    worth = np.outer(fall / rise, groups.beta / groups.size).ravel()  # hull step after hull step, group after group
    order = np.argsort(-worth, kind="stable")
    order = order[worth[order] > 0]
    group = np.tile(np.arange(len(groups.size)), len(rise))[order]
    num_bytes = np.outer(rise, groups.size).ravel()[order]
    gains = np.outer(fall, groups.beta).ravel()[order]
    least = int(groups.size.sum()) * ladder.bytes[0]
    # From the small end: differences of large sums would lose the small ones
    remaining = np.cumsum(np.concatenate([[ladder.factors[-1] * groups.beta.sum()], gains[::-1]]))
    return Steps(
        channel=channel,
        group=group,
        num_bytes=num_bytes,
        least_bytes=least,
        seconds=channel.seconds_at(least + np.concatenate([[0], np.cumsum(num_bytes)])),
        variance=remaining[::-1],
        widths=tuple(ladder.bits[c] for c in corners),
    )


def _hull(ladder: Ladder) -> list[int]:
    """Indices of the widths on the lower convex hull of (bytes, factor)."""
    hull: list[int] = []
    for index, (num_bytes, factor) in enumerate(zip(ladder.bytes, ladder.factors, strict=True)):
        while len(hull) > 1:
            (x0, y0), (x1, y1) = ((ladder.bytes[i], ladder.factors[i]) for i in hull[-2:])
            if (y0 - y1) * (num_bytes - x1) > (y1 - factor) * (x1 - x0):
                break
            hull.pop()
        hull.append(index)
    return hull


def _merge(steps: list[Steps]) -> tuple[F64, F64, F64]:
    """(seconds, variance, bound) at every time at which some channel ends a step; rising, falling, falling."""
    least = max(float(s.seconds[0]) for s in steps)
    seconds = np.unique(np.concatenate([[least], *(s.seconds[s.seconds > least] for s in steps)]))
    variance, bound = np.zeros(len(seconds)), np.zeros(len(seconds))
    for s in steps:
        variance += s.variance[np.searchsorted(s.seconds, seconds, "right") - 1]
        last = np.append(np.diff(s.seconds) > 0, True)  # equal times (theta = 0): all of their steps are free
        bound += np.interp(seconds, s.seconds[last], s.variance[last])
    falls = np.append(True, np.diff(variance) < 0)
    return seconds[falls], variance[falls], bound[falls]
