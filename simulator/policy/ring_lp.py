"""Widths for a whole ring, without the barriers that AdaQP's sum over rounds assumes.

Without a barrier a rank starts its next round when its own send and receive are done, whatever the others do; time
lost in one round can be made up in the next, and a channel need not be as fast as its round's others. Legend, for
round r of 1..N-1, sender d and receiver e = (d + r) mod N:

    t       seconds of the message d -> e at its widths
    T_d^r   when rank d has completed round r, T_d^0 = 0
    A_e^r   when the last of the messages of rounds 1..r has arrived at e, A_e^0 = 0

    T_d^r >= T_d^{r-1} + t      A_e^r >= T_d^{r-1} + t      the message leaves when d has reached the round
    A_e^r >= A_e^{r-1} + t      the receiver's link is serial: what comes early waits for what is coming in
    T_e^r >= A_e^r

A linear program if groups may have mixtures of widths: the steps of hull.py, each in [0, 1]. It gives every channel its
seconds; whole steps that end within them, and then the further ones that fit, are the answer. The mixtures are the
bound, as exact as the solver's tolerance (TRUST).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.policy.front import Corners
from simulator.policy.hull import Steps, best_front, steps_of
from simulator.policy.milp import SCALE, linear
from simulator.policy.problem import U8, ProblemError, RoundProblem
from simulator.policy.solvers import SolverName, solve_model

TRUST = 1e-6  # relative: linear programs are solved to 1e-7

Bits = tuple[tuple[U8, ...], ...]  # per round, per channel, [G]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RingAssignment:
    """Widths for all rounds of a ring. ``seconds`` is the ring's own time, ``barrier_s`` the sum over its rounds.

    ``objective`` is the score for a lambda, the variance within a time, or the seconds within a variance; evaluated
    from the bits.
    """

    rounds: tuple[RoundProblem, ...]
    bits: Bits
    seconds: float
    barrier_s: float
    variance: float
    objective: float
    lower_bound: float
    gap: float
    solve_seconds: float
    solver: str
    status: str


def ring_seconds(rounds: Sequence[RoundProblem], bits: Bits, ranks: int, *, serial_ingress: bool = True) -> float:
    """When the last rank is done, all starting at 0. The recursion above."""
    done, arrived = np.zeros(ranks), np.zeros(ranks)
    for problem, round_bits in zip(rounds, bits, strict=True):
        next_done, next_arrived = done.copy(), arrived.copy()
        for channel, b in zip(problem.channels, round_bits, strict=True):
            d, e = channel.sender, channel.receiver
            seconds = float(channel.seconds_at(channel.bytes_at(b)))
            arrival = max(done[d], arrived[e]) + seconds if serial_ingress else done[d] + seconds
            next_done[d] = max(next_done[d], done[d] + seconds)
            next_done[e] = max(next_done[e], arrival)
            next_arrived[e] = max(next_arrived[e], arrival)
        done, arrived = next_done, next_arrived
    return float(done.max())


def corners_of(rounds: Sequence[RoundProblem], ranks: int) -> Corners:
    """The ring's seconds at the lowest and highest widths; the rounds' own corners of variance, summed."""
    parts = [best_front(problem).corners for problem in rounds]
    return Corners(
        utopia_s=ring_seconds(rounds, tuple(p.fill(0) for p in rounds), ranks),
        nadir_s=ring_seconds(rounds, tuple(p.fill(-1) for p in rounds), ranks),
        utopia_variance=sum(c.utopia_variance for c in parts),
        nadir_variance=sum(c.nadir_variance for c in parts),
    )


def at(
    rounds: Sequence[RoundProblem], ranks: int, lam: float, solver: SolverName = "highs", *, time_limit_s: float = 60.0
) -> RingAssignment:
    """Least lambda * variance + (1 - lambda) * ring seconds, normalised by corners_of(). SolverError, ProblemError."""
    corners = corners_of(rounds, ranks)
    fastest = lam == 0  # the score forgets the variance: take the least of the fastest
    return _solve(
        rounds,
        ranks,
        corners,
        1.0 if fastest else lam,
        corners.utopia_s if fastest else None,
        solver,
        time_limit_s,
        lambda seconds, variance: float(corners.score(seconds, variance, lam)),
    )


def within(
    rounds: Sequence[RoundProblem],
    ranks: int,
    seconds: float,
    solver: SolverName = "highs",
    *,
    time_limit_s: float = 60.0,
) -> RingAssignment:
    """Least variance of rings that end within ``seconds``. ProblemError if none does; SolverError."""
    corners = corners_of(rounds, ranks)
    if seconds < corners.utopia_s:
        raise ProblemError(f"no ring ends within {seconds:.6g} s: the fastest takes {corners.utopia_s:.6g} s")
    return _solve(rounds, ranks, corners, 1.0, seconds, solver, time_limit_s, lambda _, variance: variance)


def least_time_within(
    rounds: Sequence[RoundProblem],
    ranks: int,
    variance: float,
    solver: SolverName = "highs",
    *,
    tolerance: float = 1e-3,
    time_limit_s: float = 60.0,
) -> RingAssignment:
    """Least ring seconds of at most this variance, by bisection over within(), to a relative ``tolerance``.

    A time is too short, for certain, where the mixtures' own bound lies above ``variance``: the longest such time is
    the lower bound. ProblemError if no assignment has so little variance. SolverError.
    """
    begin = time.perf_counter()
    corners = corners_of(rounds, ranks)
    if variance < corners.utopia_variance * (1 - TRUST):
        least = corners.utopia_variance
        raise ProblemError(f"no assignment has a variance of {variance:.6g}: the least is {least:.6g}")
    widest = tuple(problem.fill(-1) for problem in rounds)
    too_short = bound = corners.utopia_s
    best = _evaluated(tuple(rounds), widest, ranks, lambda seconds, _: seconds, bound, begin, solver, "optimal")
    fastest = within(rounds, ranks, corners.utopia_s, solver, time_limit_s=time_limit_s)
    if fastest.variance <= variance:
        best = fastest
    while best.seconds - too_short > tolerance * best.seconds:
        middle = (best.seconds + too_short) / 2
        answer = within(rounds, ranks, middle, solver, time_limit_s=time_limit_s)
        if answer.variance <= variance and answer.seconds < best.seconds:
            best = answer
        else:
            too_short = middle
            bound = middle if answer.lower_bound > variance else bound
    return replace(
        best,
        objective=best.seconds,
        lower_bound=min(bound, best.seconds),
        gap=max(0.0, 1 - bound / best.seconds) if best.seconds else 0.0,
        solve_seconds=time.perf_counter() - begin,
    )


def _solve(
    rounds: Sequence[RoundProblem],
    ranks: int,
    corners: Corners,
    lam: float,
    limit_s: float | None,
    solver: SolverName,
    time_limit_s: float,
    objective: Callable[[float, float], float],
) -> RingAssignment:
    begin = time.perf_counter()
    _check(rounds, ranks)
    steps = [[steps_of(c, p.ladder(c)) for c in p.channels] for p in rounds]
    model = _model(steps, ranks, corners, lam, limit_s)
    status = solve_model(model, solver, time_limit_s, 0.0)
    shares = np.clip([variable.value or 0.0 for variable in model.share.values()], 0.0, 1.0)
    bits, variance, begin_share = [], 0.0, 0
    for round_steps in steps:
        round_bits = []
        for s in round_steps:
            share = shares[begin_share : begin_share + len(s.group)]
            begin_share += len(s.group)
            variance += float(s.variance[-1] - (1 - share) @ np.diff(s.variance))
            round_bits.append(s.bits(float(s.channel.seconds_at(s.least_bytes + share @ s.num_bytes))))
        bits.append(tuple(round_bits))
    if status == "optimal":
        bound = objective((model.end.value or 0.0) * corners.span_s() + corners.utopia_s, variance)
        bound -= TRUST * abs(bound)
    else:  # out of time: the mixtures are no bound
        bound = objective(corners.utopia_s, corners.utopia_variance)
    return _evaluated(tuple(rounds), tuple(bits), ranks, objective, bound, begin, solver, status)


def _evaluated(
    rounds: tuple[RoundProblem, ...],
    bits: Bits,
    ranks: int,
    objective: Callable[[float, float], float],
    bound: float,
    begin: float,
    solver: str,
    status: str,
) -> RingAssignment:
    seconds = ring_seconds(rounds, bits, ranks)
    variance = sum(p.variance(b) for p, b in zip(rounds, bits, strict=True))
    value = objective(seconds, variance)
    bound = min(bound, value)
    return RingAssignment(
        rounds=rounds,
        bits=bits,
        seconds=seconds,
        barrier_s=sum(p.seconds(b) for p, b in zip(rounds, bits, strict=True)),
        variance=variance,
        objective=value,
        lower_bound=bound,
        gap=(value - bound) / abs(value) if value else 0.0,
        solve_seconds=time.perf_counter() - begin,
        solver=f"{solver}, ring",
        status="heuristic" if status == "optimal" else status,
    )


def _model(steps: list[list[Steps]], ranks: int, corners: Corners, lam: float, limit_s: float | None) -> Any:
    """Seconds in units of the corners' span, the end counted from utopia; the objective scaled as in milp.py."""
    import pyomo.environ as pyo

    unit = corners.span_s()
    flat = [s for round_steps in steps for s in round_steps]
    model = pyo.ConcreteModel()
    model.share = pyo.Var(range(sum(len(s.group) for s in flat)), bounds=(0, 1))
    model.done = pyo.Var(range(len(steps) + 1), range(ranks), domain=pyo.NonNegativeReals)
    model.arrived = pyo.Var(range(len(steps) + 1), range(ranks), domain=pyo.NonNegativeReals)
    model.took = pyo.Var([(r, s.channel.sender) for r, some in enumerate(steps, 1) for s in some])
    model.end = pyo.Var(domain=pyo.NonNegativeReals)
    model.rules = pyo.ConstraintList()
    for rank in range(ranks):
        model.done[0, rank].fix(0.0)
        model.arrived[0, rank].fix(0.0)
    share, begin = list(model.share.values()), 0
    for r, round_steps in enumerate(steps, 1):
        for rank in range(ranks):
            model.rules.add(model.done[r, rank] >= model.done[r - 1, rank])
            model.rules.add(model.arrived[r, rank] >= model.arrived[r - 1, rank])
            model.rules.add(model.done[r, rank] >= model.arrived[r, rank])
        for s in round_steps:
            own = share[begin : begin + len(s.group)]
            begin += len(s.group)
            slopes = (s.channel.theta_s_per_byte / unit * s.num_bytes).tolist()
            base = float(s.channel.seconds_at(s.least_bytes)) / unit
            d, e = s.channel.sender, s.channel.receiver
            took = model.took[r, d]
            model.rules.add(linear([*slopes, -1.0], [*own, took], base) == 0)
            for before, after in (
                (model.done[r - 1, d], model.done[r, d]),
                (model.done[r - 1, d], model.arrived[r, e]),
                (model.arrived[r - 1, e], model.arrived[r, e]),
            ):
                model.rules.add(before + took - after <= 0)
    for rank in range(ranks):
        model.rules.add(model.done[len(steps), rank] - model.end <= corners.utopia_s / unit)
    if limit_s is not None:
        model.end.setub((limit_s - corners.utopia_s) / unit)
    weight = SCALE * lam / corners.span_variance()
    gains = np.concatenate([np.diff(s.variance) for s in flat]) * weight
    most = weight * (sum(float(s.variance[0]) for s in flat) - corners.utopia_variance)
    model.score = pyo.Objective(expr=linear([*gains.tolist(), SCALE * (1 - lam)], [*share, model.end], most))
    return model


def _check(rounds: Sequence[RoundProblem], ranks: int) -> None:
    last = 0
    for problem in rounds:
        strides = {(c.receiver - c.sender) % ranks for c in problem.channels}
        if len(strides) > 1 or 0 in strides or not all(0 <= c.sender < ranks for c in problem.channels):
            raise ProblemError(f"in a round of a ring of {ranks} all send equally far, not {sorted(strides)} ranks on")
        if max(strides) <= last:
            raise ProblemError(f"rounds {last} and {max(strides)} of the ring stand in the wrong order")
        last = max(strides)
