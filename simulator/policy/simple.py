"""Policies that don't look at beta: what the adaptive ones are measured against.

Draws are keyed by (key, sender, receiver), never by order: a channel gets the same widths whatever stands beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.policy.front import Assignment, Front, assess
from simulator.policy.hull import best_front
from simulator.policy.problem import U8, Channel, Ladder, ProblemError, RoundProblem


def fixed(problem: RoundProblem, lam: float, bits: int) -> Assignment:
    """One width for all."""
    if bits not in problem.bits:
        raise ProblemError(f"fixed at {bits} bits, but this problem allows {', '.join(map(str, problem.bits))}")
    return _scored(
        problem, lam, "fixed", lambda _: tuple(np.full(len(c.groups.size), bits, np.uint8) for c in problem.channels)
    )


def uniform(problem: RoundProblem, lam: float, key: int) -> Assignment:
    """Every group draws one of the allowed widths, all equally likely (AdaQP, section 5.4)."""
    allowed = np.array(problem.bits, np.uint8)

    def draw(_: Front) -> tuple[U8, ...]:
        return tuple(
            allowed[(_raw(key, c, len(c.groups.size)) % len(allowed)).astype(np.int64)] for c in problem.channels
        )

    return _scored(problem, lam, "uniform", draw)


def random(problem: RoundProblem, lam: float, key: int) -> Assignment:
    """The time that the best policy takes at ``lam``, spent on groups in drawn order: what knowing beta is worth."""

    def draw(front: Front) -> tuple[U8, ...]:
        budget_s = front.at(lam).seconds
        return tuple(_spend(c, problem.ladder(c), budget_s, key) for c in problem.channels)

    return _scored(problem, lam, "random", draw)


def _spend(channel: Channel, ladder: Ladder, budget_s: float, key: int) -> U8:
    """[G] bits: groups in drawn order go up one width each time they come, where it fits."""
    size = channel.groups.size
    steps = len(ladder.bits) - 1
    groups = np.argsort(_raw(key, channel, steps * len(size)), kind="stable") % max(1, len(size))
    level = np.zeros(len(size), np.int64)
    num_bytes = int(size.sum()) * ladder.bytes[0]
    for group in groups.tolist():
        more = num_bytes + int(size[group]) * (ladder.bytes[level[group] + 1] - ladder.bytes[level[group]])
        if channel.seconds_at(more) <= budget_s:
            num_bytes = more
            level[group] += 1
    return np.array(ladder.bits, np.uint8)[level]


def _raw(key: int, channel: Channel, count: int) -> NDArray[np.uint64]:
    """``count`` 64-bit words of the channel's own stream."""
    seed = np.random.SeedSequence([key, channel.sender, channel.receiver])
    raw: NDArray[np.uint64] = np.random.Philox(seed).random_raw(count)
    return raw


def _scored(problem: RoundProblem, lam: float, name: str, draw: Callable[[Front], tuple[U8, ...]]) -> Assignment:
    begin = time.perf_counter()
    front = best_front(problem)
    return assess(
        problem,
        draw(front),
        lambda seconds, variance: float(front.corners.score(seconds, variance, lam)),
        front.least_score(lam),
        solve_seconds=time.perf_counter() - begin,
        solver=name,
        status="heuristic",
    )
