"""Answers: an assignment of widths, and the front of all the trade-offs between time and variance.

Time and variance are normalised by the corners of the front, so that lambda means the same whatever the
network and the layer: each is 0 at its utopia (the best that it can be by itself) and 1 at its nadir (what it is
where the other one is best).

    seconds    utopia: the slowest channel at the lowest widths      nadir: at the highest
    variance   utopia: at the highest widths                         nadir: at the least time, what fits being free

Shapes: F points of a front, G groups and M messages of a channel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.policy.problem import F64, U8, ProblemError, RoundProblem

ROUNDING = 1e-12  # a relative range of variance below this is none


def check_lambda(lam: float) -> None:
    """ProblemError for one that is none."""
    if not 0 <= lam <= 1:
        raise ProblemError(f"lambda is {lam}; it lies between 0 (least time) and 1 (least variance)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corners:
    """Utopia and nadir of a round, and the objective that they normalise."""

    utopia_s: float
    nadir_s: float
    utopia_variance: float
    nadir_variance: float

    def span_s(self) -> float:
        return (self.nadir_s - self.utopia_s) or self.utopia_s or 1.0

    def span_variance(self) -> float:
        span = self.nadir_variance - self.utopia_variance
        return span if span > ROUNDING * self.nadir_variance else self.nadir_variance or 1.0

    def score(self, seconds: F64 | float, variance: F64 | float, lam: float) -> F64:
        """lambda * normalised variance + (1 - lambda) * normalised seconds."""
        check_lambda(lam)
        scored: F64 = lam * (np.asarray(variance) - self.utopia_variance) / self.span_variance()
        scored += (1 - lam) * (np.asarray(seconds) - self.utopia_s) / self.span_s()
        return scored


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Widths for every group of a round, and how good they are.

    ``seconds`` and ``variance`` are computed from the bits by problem.py, whatever the solver said.
    ``objective`` is what was minimised: the score for a lambda, the variance within a time, or the seconds within a
    variance. No assignment has less than ``lower_bound``; ``gap`` is what remains, relative to the objective.
    """

    problem: RoundProblem
    bits: tuple[U8, ...]  # per channel [G]
    seconds: float
    variance: float
    objective: float
    lower_bound: float
    gap: float
    solve_seconds: float
    solver: str
    status: str  # optimal | feasible | heuristic

    def per_message(self, channel: int) -> U8:
        """[M] bits of a channel's messages, in the order in which they were given."""
        return self.problem.channels[channel].groups.per_message(self.bits[channel])


def corners_of(problem: RoundProblem, nadir_variance: float) -> Corners:
    """``nadir_variance`` is that of the least-time solution with its free upgrades."""
    low, high = problem.fill(0), problem.fill(-1)
    utopia_variance = problem.variance(high)
    return Corners(
        utopia_s=problem.seconds(low),
        nadir_s=problem.seconds(high),
        utopia_variance=utopia_variance,
        nadir_variance=max(nadir_variance, utopia_variance),
    )


def assess(
    problem: RoundProblem,
    bits: tuple[U8, ...],
    objective: Callable[[float, float], float],
    lower_bound: float,
    *,
    solve_seconds: float,
    solver: str,
    status: str,
) -> Assignment:
    """An assignment from bits alone: seconds and variance evaluated here, ``objective(seconds, variance)`` of them."""
    seconds, variance = problem.seconds(bits), problem.variance(bits)
    value = objective(seconds, variance)
    lower_bound = min(lower_bound, value)  # a bound and a value that are equal may differ by a rounding
    return Assignment(
        problem=problem,
        bits=bits,
        seconds=seconds,
        variance=variance,
        objective=value,
        lower_bound=lower_bound,
        gap=(value - lower_bound) / abs(value) if value else 0.0,
        solve_seconds=solve_seconds,
        solver=solver,
        status=status,
    )


def knee_index(seconds: F64, variance: F64) -> int:
    """Which point of a front (seconds rise, variance falls) lies farthest below the chord, log variance over seconds.

    Variances of 0, which have no logarithm, stand last and are left out; of fewer than three points, the first.
    """
    positive = variance > 0
    seconds, log_variance = seconds[positive], np.log(variance[positive])
    if len(seconds) < 3:
        return 0
    along = (seconds - seconds[0]) / (seconds[-1] - seconds[0])
    height = (log_variance - log_variance[-1]) / (log_variance[0] - log_variance[-1])
    return int(np.argmax(1 - along - height))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Front:
    """All (seconds, variance) of a round that are worth having, fastest first.

    ``seconds`` [F] rise, ``variance`` [F] falls, both strictly. ``bound`` [F] is the least variance that any
    assignment within those seconds may have: ``variance`` itself where the front is exact, else a convex
    curve with its corners at ``seconds``.
    """

    problem: RoundProblem
    seconds: F64
    variance: F64
    bound: F64
    corners: Corners
    choose: Callable[[float], tuple[U8, ...]]  # bits whose channels all end within so many seconds
    exact: bool
    solver: str
    solve_seconds: float

    def at(self, lam: float) -> Assignment:
        """The least score for this lambda; of equal ones the fastest."""
        index = int(np.argmin(self.corners.score(self.seconds, self.variance, lam)))
        return self._assignment(
            self.seconds[index], lambda s, v: float(self.corners.score(s, v, lam)), self.least_score(lam)
        )

    def priced(self, price_s: float, price_variance: float, free_s: float = 0.0) -> Assignment:
        """The least price of seconds and variance above their utopias; of equal ones the most exact.

        The first ``free_s`` seconds are paid for anyway.
        """

        def price(seconds: F64 | float, variance: F64 | float) -> F64:
            above = np.maximum(seconds, free_s) - self.corners.utopia_s
            return np.asarray(price_s * above + price_variance * (variance - self.corners.utopia_variance))

        prices = price(self.seconds, self.variance)
        index = len(prices) - 1 - int(np.argmin(prices[::-1]))
        bound = float(price(self.seconds, self.bound).min())
        return self._assignment(self.seconds[index], lambda s, v: float(price(s, v)), bound)

    def least_score(self, lam: float) -> float:
        """No assignment of the round scores less for this lambda."""
        return float(self.corners.score(self.seconds, self.bound, lam).min())

    def knee(self) -> Assignment:
        """The point farthest below the chord between the ends, log variance over seconds.

        Variances of 0 have no logarithm: those points are left out.
        """
        return self.least_variance_within(float(self.seconds[self.knee_index()]))

    def knee_index(self) -> int:
        return knee_index(self.seconds, self.variance)

    def least_variance_within(self, seconds: float) -> Assignment:
        """Least variance of the assignments that end within ``seconds``. ProblemError if none does."""
        if seconds < self.seconds[0]:
            raise ProblemError(f"no assignment ends within {seconds:.6g} s: the fastest takes {self.seconds[0]:.6g} s")
        if self.exact:
            bound = self.bound[np.searchsorted(self.seconds, seconds, "right") - 1]
        else:
            bound = np.interp(seconds, self.seconds, self.bound)
        return self._assignment(seconds, lambda _, variance: variance, float(bound))

    def no_slower_than(self, hidden_s: float) -> Assignment:
        """Messages that are over within ``hidden_s`` of computation cost nothing: spend all of it on variance.

        Where even the fastest assignment takes longer, the fastest.
        """
        return self.least_variance_within(max(hidden_s, float(self.seconds[0])))

    def least_time_within(self, variance: float) -> Assignment:
        """Least seconds of the assignments of at most this variance. ProblemError if there is none."""
        if variance < self.variance[-1]:
            raise ProblemError(f"no assignment has a variance of {variance:.6g}: the least is {self.variance[-1]:.6g}")
        index = int(np.searchsorted(-self.variance, -variance))
        bound = self.seconds[index] if self.exact else np.interp(-variance, -self.bound, self.seconds)
        return self._assignment(self.seconds[index], lambda seconds, _: seconds, float(bound))

    def _assignment(self, seconds: float, objective: Callable[[float, float], float], bound: float) -> Assignment:
        begin = time.perf_counter()
        bits = self.choose(seconds)
        return assess(
            self.problem,
            bits,
            objective,
            bound,
            solve_seconds=self.solve_seconds + time.perf_counter() - begin,
            solver=self.solver,
            status="optimal" if self.exact else "heuristic",
        )
