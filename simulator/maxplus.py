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
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.cost import CostError

F64 = NDArray[np.float64]
Semantics = Literal["barrier", "eager", "rendezvous", "posted"]
SEMANTICS: tuple[Semantics, ...] = get_args(Semantics)


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
    if semantics == "posted":
        return _posted(flat, clock)
    if semantics == "barrier":
        return _barrier(flat, clock)
    return _in_rounds(flat, clock, range(1, n), eager=semantics == "eager")


def makespan(cost: ArrayLike, start: ArrayLike, semantics: Semantics) -> F64:
    """When the last rank is done: seconds [...], on the clock of ``start``."""
    return np.asarray(ring_finish(cost, start, semantics).max(axis=-1))


def check(cost: ArrayLike, start: ArrayLike, semantics: str) -> tuple[F64, F64]:
    """The inputs of a ring engine as arrays. CostError where they can't be used."""
    costs, starts = np.asarray(cost, np.float64), np.asarray(start, np.float64)
    n = starts.shape[-1] if starts.ndim else 0
    if n < 1 or costs.shape[-2:] != (n, n):
        raise CostError(f"a ring takes costs [..., N, N] and starts [..., N], not {costs.shape} and {starts.shape}")
    if semantics not in SEMANTICS:
        raise CostError(f"the semantics of a ring are one of {', '.join(SEMANTICS)}, not {semantics!r}")
    if not np.isfinite(starts).all():
        raise CostError("every start must be a finite number of seconds")
    # One pass each, no temporaries of the size of the costs: a NaN makes either extreme a NaN.
    if not costs.max(initial=0.0) < np.inf or (costs.min(initial=0.0) < 0 and ((costs < 0) & np.isfinite(costs)).any()):
        raise CostError("every cost must be finite and >= 0, or NO_MESSAGE")
    return costs, starts


def _diagonals(flat: F64, n: int, i: int) -> tuple[F64, F64]:
    """Costs of round i without copying: of the receivers i..N-1 (senders 0..N-i-1), and of 0..i-1.

    The entry (r, r - i) stands at r N + r - i, so a round is a slice of stride N + 1; (r, r - i + N) likewise.
    """
    step = n + 1
    return flat[..., i * n :: step][..., : n - i], flat[..., n - i :: step][..., :i]


def _in_rounds(flat: F64, clock: F64, rounds: range, *, eager: bool) -> F64:
    """Rendezvous or eager. ``clock`` [..., N] is used up."""
    n = clock.shape[-1]
    arrived, begun = np.empty_like(clock), np.empty_like(clock)  # by receiver
    for i in rounds:
        upper, lower = _diagonals(flat, n, i)
        if eager:
            np.add(clock[..., : n - i], upper, out=arrived[..., i:])
            np.add(clock[..., n - i :], lower, out=arrived[..., :i])
        else:
            np.maximum(clock[..., : n - i], clock[..., i:], out=begun[..., i:])
            np.maximum(clock[..., n - i :], clock[..., :i], out=begun[..., :i])
            np.add(begun[..., i:], upper, out=arrived[..., i:])
            np.add(begun[..., :i], lower, out=arrived[..., :i])
        np.maximum(clock, arrived, out=clock)
        np.maximum(clock[..., : n - i], arrived[..., i:], out=clock[..., : n - i])
        np.maximum(clock[..., n - i :], arrived[..., :i], out=clock[..., n - i :])
    return clock


def _barrier(flat: F64, clock: F64) -> F64:
    """Round 1 as in rendezvous; from then on all ranks share one clock, and the slowest message moves it."""
    n = clock.shape[-1]
    if n == 1:
        return clock
    shared = _in_rounds(flat, clock, range(1, 2), eager=False).max(axis=-1)
    for i in range(2, n):
        upper, lower = _diagonals(flat, n, i)
        slowest = np.maximum(upper.max(axis=-1), lower.max(axis=-1))
        shared = np.maximum(shared, shared + slowest)
    clock[...] = shared[..., None]
    return clock


def _posted(flat: F64, clock: F64) -> F64:
    """``clock`` [..., N] is the receivers' and is used up; ``sent`` is the senders'."""
    n = clock.shape[-1]
    sent = clock.copy()
    arrives = np.empty_like(clock)  # by sender
    for i in range(1, n):
        upper, lower = _diagonals(flat, n, i)
        np.add(sent[..., : n - i], upper, out=arrives[..., : n - i])
        np.add(sent[..., n - i :], lower, out=arrives[..., n - i :])
        np.maximum(sent, arrives, out=sent)
        np.maximum(clock[..., i:], arrives[..., : n - i], out=clock[..., i:])
        np.maximum(clock[..., :i], arrives[..., n - i :], out=clock[..., :i])
    return np.maximum(clock, sent)
