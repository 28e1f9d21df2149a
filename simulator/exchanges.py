"""Widths for one exchange: its rounds one by one, all its channels at once, the ring as a whole, or all bytes.

Which of them is right depends on how the ring goes. The seconds that each keeps short, of channels c in rounds r:

    rounds     sum over r of the slowest c of round r       a barrier after every round (AdaQP, section 4.2)
    posted     the slowest c of all                         all messages under way at once, a link for every pair
    total      sum over all c                               one medium that all share; where links are alike: bytes
    ring_lp    when the last rank has done its last round   rounds without barriers (policy/ring_lp.py)

Messages that travel while a rank multiplies its local rows cost nothing as long as they end before it: ``hidden_s``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.keyed import mix64
from simulator.policy import (
    DEFAULT_BITS,
    POLICIES,
    Assignment,
    Front,
    ProblemError,
    RoundProblem,
    Settings,
    assign,
    best_front,
    check_lambda,
    joint,
    ring_lp,
    rounds_of,
)
from simulator.policy.solvers import SolverName, require
from simulator.workload import Exchange, message_bytes

U8 = NDArray[np.uint8]
Budget = Literal["each", "joint"]  # of every exchange by itself (AdaQP), or one for all
BY_FRONT = ("adaptive", "exact", "hull")  # that choose a point of a round's front, and so can heed what is hidden
JOINT = (*BY_FRONT, "posted", "total")  # that can share a budget
WHOLE = ("posted", "total", "ring_lp")  # that look at an exchange, not at a round


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeAssignment:
    """The widths of an exchange, [M] in the order of the workload, and how good they are.

    ``seconds`` as the policy counts them. ``objective`` and ``lower_bound`` are sums over the problems solved, ``gap``
    is the largest of any.
    """

    bits: U8
    seconds: float
    variance: float
    objective: float
    lower_bound: float
    gap: float
    solve_s: float
    solver: str


def check_policy(policy: str, budget: Budget = "each") -> None:
    """ProblemError for a name that is none or that knows no such budget, SolverError where its program is missing."""
    if policy not in (*POLICIES, *WHOLE, "auto"):
        raise ProblemError(f"there is no policy {policy!r}; there are {', '.join((*POLICIES, *WHOLE))}, auto")
    if budget == "joint" and policy not in (*JOINT, "auto"):
        raise ProblemError(f"one joint budget goes with {', '.join(JOINT)} and auto, not with {policy}")
    needs: SolverName | None = "highs" if policy.startswith("highs") or policy == "ring_lp" else None
    needs = "glpk" if policy.startswith("glpk") else needs
    if needs is not None:
        require(needs)


def problems_of(
    exchange: Exchange,
    costs: PairCosts,
    group_size: int,
    bits: tuple[int, ...] = DEFAULT_BITS,
    *,
    at_once: bool = False,
) -> list[RoundProblem]:
    """The rounds of an exchange as problems, or ``at_once`` all of them as one; unknown coefficients (NaN) are 1."""
    known = replace(exchange, alpha_squared=np.nan_to_num(exchange.alpha_squared, nan=1.0))
    least, most = message_bytes(exchange.row_entries, np.array([min(bits), max(bits)], np.uint8))
    lines, _ = costs.straight(exchange.rows * least, exchange.rows * most)
    rounds = rounds_of(known, lines.theta_s_per_byte, lines.gamma_s, group_size, bits=bits)
    if not at_once or not rounds:
        return rounds
    return [RoundProblem(channels=tuple(c for problem in rounds for c in problem.channels), bits=bits)]


def assign_exchange(
    exchange: Exchange,
    costs: PairCosts,
    policy: str,
    *,
    lam: float,
    group_size: int,
    bits: tuple[int, ...] = DEFAULT_BITS,
    key: int = 0,
    hidden_s: float = 0.0,
    at_once: bool = False,
) -> ExchangeAssignment:
    """Widths by a policy of policy/table.py, by ``posted``, ``total`` or ``ring_lp``. ProblemError, SolverError.

    ``hidden_s``: how long messages travel for nothing; it counts for the policies that know a front and for ring_lp.
    ``at_once``: pose the exchange as one problem to a policy of rounds, too.
    """
    check_policy(policy)
    if policy == "total" or (hidden_s > 0 and policy in JOINT):
        fronts = fronts_of(exchange, costs, policy, group_size, bits)
        return joined(exchange, at_fronts([fronts], lam, [hidden_s], policy, "each")[0])
    problems = problems_of(exchange, costs, group_size, bits, at_once=at_once or policy == "posted")
    if policy == "ring_lp":
        return _by_ring(exchange, problems, lam, hidden_s)
    name = "adaptive" if policy == "posted" else policy
    solved = [assign(name, problem, Settings(lam=lam, key=mix64(key, step))) for step, problem in enumerate(problems)]
    return joined(exchange, solved)


def fronts_of(
    exchange: Exchange, costs: PairCosts, policy: str, group_size: int, bits: tuple[int, ...] = DEFAULT_BITS
) -> list[Front]:
    """The fronts whose seconds add up, as a policy of ``JOINT`` sees it: of rounds, of all at once, of channels."""
    problems = problems_of(exchange, costs, group_size, bits, at_once=policy == "posted")
    if policy == "total":
        problems = [RoundProblem(channels=(c,), bits=bits) for problem in problems for c in problem.channels]
    return [best_front(problem) for problem in problems]


def at_front(fronts: Sequence[Front], lam: float, hidden_s: float = 0.0) -> list[Assignment]:
    """The least score of every front where the first ``hidden_s`` of an exchange are free."""
    check_lambda(lam)
    return [_free_until(front, lam, free) for front, free in zip(fronts, shares(fronts, hidden_s), strict=True)]


def shares(fronts: Sequence[Front], hidden_s: float) -> list[float]:
    """What rounds have of the free seconds of an exchange: in proportion to the least time that each can take."""
    least = math.fsum(front.corners.utopia_s for front in fronts)
    return [hidden_s * front.corners.utopia_s / least if least else 0.0 for front in fronts]


def _free_until(front: Front, lam: float, hidden_s: float) -> Assignment:
    """The least of lambda * variance + (1 - lambda) * max(seconds, hidden_s), normalised; of equals the most exact."""
    if hidden_s <= front.seconds[0]:
        return front.at(lam)
    return front.priced((1 - lam) / front.corners.span_s(), lam / front.corners.span_variance(), hidden_s)


def assign_together(
    exchanges: Sequence[Exchange],
    costs: PairCosts,
    policy: str,
    *,
    lam: float,
    group_size: int,
    bits: tuple[int, ...] = DEFAULT_BITS,
    hidden_s: Sequence[float],
) -> list[ExchangeAssignment]:
    """Widths for all exchanges under one budget. ProblemError for a policy that knows no fronts."""
    check_policy(policy, "joint")
    fronts = [fronts_of(e, costs, policy, group_size, bits) for e in exchanges]
    together = at_fronts(fronts, lam, hidden_s, policy, "joint")
    return [joined(e, solved) for e, solved in zip(exchanges, together, strict=True)]


def at_fronts(
    fronts: Sequence[Sequence[Front]], lam: float, hidden_s: Sequence[float], policy: str, budget: Budget
) -> list[list[Assignment]]:
    """What a policy of ``JOINT`` chooses for this lambda: of every exchange's ``fronts_of`` a point each.

    ``hidden_s``: of every exchange, how long it travels for nothing.
    """
    if budget == "joint":
        return _together(fronts, lam, hidden_s)
    pairs = list(zip(fronts, hidden_s, strict=True))
    if policy == "total":
        return [_together([channels], lam, [hidden])[0] for channels, hidden in pairs]
    return [at_front(rounds, lam, hidden) for rounds, hidden in pairs]


def _together(fronts: Sequence[Sequence[Front]], lam: float, hidden_s: Sequence[float]) -> list[list[Assignment]]:
    """One weighing of the sums of seconds and of ``relative`` variance over all fronts."""
    every = [front for rounds in fronts for front in rounds]
    if not every:
        return [[] for _ in fronts]
    free = [share for rounds, hidden in zip(fronts, hidden_s, strict=True) for share in shares(rounds, hidden)]
    left = iter(joint.at(every, lam, relative(fronts), free_s=free).rounds)
    return [[next(left) for _ in rounds] for rounds in fronts]


def relative(fronts: Sequence[Sequence[Front]]) -> list[float]:
    """What the variance of each front counts in a sum over exchanges: relative to its exchange's at the least seconds.

    Rows of activations and of gradients have other units; plain variances would leave all widths to the exchange with
    the largest rows.
    """
    scales = [math.fsum(front.corners.nadir_variance for front in rounds) or 1.0 for rounds in fronts]
    return [1 / scale for scale, rounds in zip(scales, fronts, strict=True) for _ in rounds]


def joined(exchange: Exchange, solved: Sequence[Assignment]) -> ExchangeAssignment:
    """The answers of an exchange's problems together."""
    bits = exchange.bits.copy()
    for one in solved:
        for index, channel in enumerate(one.problem.channels):
            bits[messages_of(exchange, channel.sender, channel.receiver)] = one.per_message(index)
    return ExchangeAssignment(
        bits=bits,
        seconds=math.fsum(one.seconds for one in solved),
        variance=math.fsum(one.variance for one in solved),
        objective=math.fsum(one.objective for one in solved),
        lower_bound=math.fsum(one.lower_bound for one in solved),
        gap=max((one.gap for one in solved), default=0.0),
        solve_s=math.fsum(one.solve_seconds for one in solved),
        solver=solved[0].solver if solved else "none",
    )


def _by_ring(exchange: Exchange, rounds: list[RoundProblem], lam: float, hidden_s: float) -> ExchangeAssignment:
    if not rounds:
        return joined(exchange, [])
    ranks = len(exchange.rows)
    solved = ring_lp.at(rounds, ranks, lam)
    if solved.seconds < hidden_s:
        solved = ring_lp.within(rounds, ranks, hidden_s)
    return of_ring(exchange, solved)


def of_ring(exchange: Exchange, solved: ring_lp.RingAssignment) -> ExchangeAssignment:
    """A ring's widths as an exchange's."""
    bits = exchange.bits.copy()
    for problem, of_round in zip(solved.rounds, solved.bits, strict=True):
        for channel, of_channel in zip(problem.channels, of_round, strict=True):
            bits[messages_of(exchange, channel.sender, channel.receiver)] = channel.groups.per_message(of_channel)
    return ExchangeAssignment(
        bits=bits,
        seconds=solved.seconds,
        variance=solved.variance,
        objective=solved.objective,
        lower_bound=solved.lower_bound,
        gap=solved.gap,
        solve_s=solved.solve_seconds,
        solver=solved.solver,
    )


def messages_of(exchange: Exchange, sender: int, receiver: int) -> slice:
    """Where a channel's messages stand in an exchange's arrays."""
    before = int(exchange.rows[:sender].sum() + exchange.rows[sender, :receiver].sum())
    return slice(before, before + int(exchange.rows[sender, receiver]))
