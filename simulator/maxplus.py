"""When a ring all2all ends: a recursion of maxima and sums over its rounds, vectorised, with batch axes.

N - 1 rounds; in round i rank r sends to (r + i) mod N and receives from (r - i) mod N. At N = 4:

    round   rank 0      rank 1      rank 2      rank 3
      1     to 1 fr 3   to 2 fr 0   to 3 fr 1   to 0 fr 2
      2     to 2 fr 2   to 3 fr 3   to 0 fr 0   to 1 fr 1
      3     to 3 fr 1   to 0 fr 2   to 1 fr 3   to 2 fr 0

Legend, for receiver r, its sender s = r - i and its target t = r + i in round i:
c_i[r] the cost of the message from s to r; A_i[r] the time at which r has completed round i, A_0 = start;
X_i[r] the time at which that message has arrived. A message that doesn't exist costs ``NO_MESSAGE``
(minus infinity): nobody waits for it. Sending and receiving go on at once (full duplex).

rendezvous  X_i[r] = max(A_{i-1}[s], A_{i-1}[r]) + c_i[r]; A_i[r] = max(A_{i-1}[r], X_i[r], X_i[t]).
            A transfer starts when both ends have reached the round; both are held until it ends.
barrier     The same, then A_i[r] = max over all ranks of A_i: a round ends for all at once, the last too.
            Round 1 has no barrier before it, as in the toolkit's ring.
eager       X_i[r] = A_{i-1}[s] + c_i[r]; A_i[r] = max(A_{i-1}[r], X_i[r], X_i[t]).
            A sender doesn't wait for its receiver; it goes on when its message is injected and its own
            receive of the round is complete. A receiver may take several messages at full rate.
posted      E_i[s] = E_{i-1}[s] + c_i[r], E_0 = start (unchanged where no message); X_i[r] = E_i[s];
            A_i[r] = max(A_{i-1}[r], X_i[r]); the end is max(A_{N-1}, E_{N-1}).
            All is posted at once: a sender's messages leave one after another in round order, whatever
            it has received; arrivals are waited for in round order.

So posted <= eager <= rendezvous <= barrier, rank by rank. All grow with every cost and start.

A round needs the N costs of its own messages and no others. They are read out of a matrix (``ring_finish``), or made
when their round comes (``ring_finish_by_rounds``): then a ring may have more ranks than N x N costs fit a memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.cost import CostError

F64 = NDArray[np.float64]
Semantics = Literal["barrier", "eager", "rendezvous", "posted"]
SEMANTICS: tuple[Semantics, ...] = get_args(Semantics)
# Costs of a round i: of the receivers i..N-1 (senders 0..N-i-1), and of the receivers 0..i-1 (senders N-i..N-1)
Round: TypeAlias = Callable[[int], tuple[F64, F64]]
MADE_AT_ONCE = 1 << 17  # costs, 1 MB: of the order of a core's own cache


def ring_finish(cost: ArrayLike, start: ArrayLike, semantics: Semantics) -> F64:
    """When each rank has sent and received everything: seconds [..., N].

    ``cost`` [..., N, N]: seconds of the message that r (row) gets from s (column), >= 0 or ``NO_MESSAGE``;
    the diagonal changes nothing. ``start`` [..., N]: when each rank is ready, seconds. Leading axes broadcast.
    Errors: CostError. The recursions are above.
    """
    costs, starts = check(cost, start, semantics)
    n = starts.shape[-1]
    batch = np.broadcast_shapes(costs.shape[:-2], starts.shape[:-1])
    flat = np.ascontiguousarray(costs).reshape(*costs.shape[:-2], n * n)
    clock = np.array(np.broadcast_to(starts, (*batch, n)))
    return _ENGINES[semantics](lambda i: _diagonals(flat, n, i), clock)


def ring_finish_by_rounds(costs_of: Callable[[range], ArrayLike], start: ArrayLike, semantics: Semantics) -> F64:
    """The same for one ring whose costs are made when they are wanted; its memory is of the order of N.

    ``costs_of(rounds)`` [K, N]: for each of these rounds i, the cost of what r (column) gets from r - i mod N. It is
    asked for every round once, in order. ``start`` [N].
    """
    starts = _check_start(np.asarray(start, np.float64), semantics)
    if starts.ndim != 1:
        raise CostError(f"one ring at a time has starts [N], not {starts.shape}")
    n = len(starts)
    step = max(1, MADE_AT_ONCE // n)
    made, costs = range(0), np.empty((0, n))

    def round_of(i: int) -> tuple[F64, F64]:
        nonlocal made, costs
        if i not in made:
            made = range(i, min(i + step, n))
            costs = np.asarray(costs_of(made), np.float64)
            if costs.shape != (len(made), n):
                raise CostError(f"the costs of {len(made)} rounds of {n} ranks are [K, N], not {costs.shape}")
            _check_costs(costs)
        own = costs[i - made.start]
        return own[i:], own[:i]

    return _ENGINES[semantics](round_of, starts.copy())


def makespan(cost: ArrayLike, start: ArrayLike, semantics: Semantics) -> F64:
    """When the last rank is done: seconds [...], on the clock of ``start``."""
    return np.asarray(ring_finish(cost, start, semantics).max(axis=-1))


def check(cost: ArrayLike, start: ArrayLike, semantics: str) -> tuple[F64, F64]:
    """The inputs of a ring engine as arrays. CostError where they can't be used."""
    costs, starts = np.asarray(cost, np.float64), np.asarray(start, np.float64)
    n = starts.shape[-1] if starts.ndim else 0
    if n < 1 or costs.shape[-2:] != (n, n):
        raise CostError(f"a ring takes costs [..., N, N] and starts [..., N], not {costs.shape} and {starts.shape}")
    _check_start(starts, semantics)
    _check_costs(costs)
    return costs, starts


def _check_start(starts: F64, semantics: str) -> F64:
    if semantics not in SEMANTICS:
        raise CostError(f"the semantics of a ring are one of {', '.join(SEMANTICS)}, not {semantics!r}")
    if starts.size == 0 or not np.isfinite(starts).all():
        raise CostError("every start must be a finite number of seconds")
    return starts


def _check_costs(costs: F64) -> None:
    # One pass each, no temporaries of the size of the costs: a NaN makes either extreme a NaN.
    if not costs.max(initial=0.0) < np.inf or (costs.min(initial=0.0) < 0 and ((costs < 0) & np.isfinite(costs)).any()):
        raise CostError("every cost must be finite and >= 0, or NO_MESSAGE")


def _diagonals(flat: F64, n: int, i: int) -> tuple[F64, F64]:
    """A Round of a matrix, without copying.

    The entry (r, r - i) stands at r N + r - i, so a round is a slice of stride N + 1; (r, r - i + N) likewise.
    """
    step = n + 1
    return flat[..., i * n :: step][..., : n - i], flat[..., n - i :: step][..., :i]


def _in_rounds(costs: Round, clock: F64, rounds: range, *, eager: bool) -> F64:
    """Rendezvous or eager. ``clock`` [..., N] is used up."""
    n = clock.shape[-1]
    arrived = np.empty_like(clock)  # by receiver
    for i in rounds:
        upper, lower = costs(i)
        senders, wrapped = clock[..., : n - i], clock[..., n - i :]  # of the receivers i..N-1, and of 0..i-1
        lands, lands_wrapped = arrived[..., i:], arrived[..., :i]
        if eager:
            np.add(senders, upper, out=lands)
            np.add(wrapped, lower, out=lands_wrapped)
        else:
            np.maximum(senders, clock[..., i:], out=lands)
            np.maximum(wrapped, clock[..., :i], out=lands_wrapped)
            np.add(lands, upper, out=lands)
            np.add(lands_wrapped, lower, out=lands_wrapped)
        np.maximum(clock, arrived, out=clock)
        np.maximum(senders, lands, out=senders)  # a slice of the clock: what a rank sent ends its round, too
        np.maximum(wrapped, lands_wrapped, out=wrapped)
    return clock


def _barrier(costs: Round, clock: F64) -> F64:
    """Round 1 as in rendezvous; from then on all ranks share one clock, and the slowest message moves it."""
    n = clock.shape[-1]
    if n == 1:
        return clock
    shared = _in_rounds(costs, clock, range(1, 2), eager=False).max(axis=-1)
    for i in range(2, n):
        upper, lower = costs(i)
        slowest = np.maximum(upper.max(axis=-1), lower.max(axis=-1))
        shared = np.maximum(shared, shared + slowest)
    clock[...] = shared[..., None]
    return clock


def _posted(costs: Round, clock: F64) -> F64:
    """``clock`` [..., N] is the receivers' and is used up; ``sent`` is the senders'."""
    n = clock.shape[-1]
    sent = clock.copy()
    arrives = np.empty_like(clock)  # by sender
    for i in range(1, n):
        upper, lower = costs(i)
        lands, lands_wrapped = arrives[..., : n - i], arrives[..., n - i :]  # at the receivers i..N-1, and at 0..i-1
        receivers, first = clock[..., i:], clock[..., :i]
        np.add(sent[..., : n - i], upper, out=lands)
        np.add(sent[..., n - i :], lower, out=lands_wrapped)
        np.maximum(sent, arrives, out=sent)
        np.maximum(receivers, lands, out=receivers)
        np.maximum(first, lands_wrapped, out=first)
    return np.maximum(clock, sent)


_ENGINES: dict[Semantics, Callable[[Round, F64], F64]] = {
    "barrier": _barrier,
    "eager": lambda costs, clock: _in_rounds(costs, clock, range(1, clock.shape[-1]), eager=True),
    "rendezvous": lambda costs, clock: _in_rounds(costs, clock, range(1, clock.shape[-1]), eager=False),
    "posted": _posted,
}
