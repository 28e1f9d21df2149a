"""A ring all2all event by event: a heap of (time, event), and ranks that react.

It simulates the semantics of ``simulator.maxplus`` from what ranks do, not by its recursion: the tests hold
one against the other. Beyond it, messages may share links (``run_shared``): they flow like fluids at the rates
of max-min fair sharing, and all rates change whenever a message joins or leaves.

An event is a number. Message k N + s is what rank s sends in round k + 1 (to s + k + 1 mod N): its event
is that it has arrived. -1 - r is rank r becoming ready. Numbers from N N on belong to the shared links.
Simultaneous events may come in any order: ranks wait for sets of messages, so no time depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.cost import CostError
from simulator.fluid import Heap, SharedLinks
from simulator.maxplus import Semantics, check
from simulator.topology import Topology

F64 = NDArray[np.float64]
Start = Callable[[float, int], None]  # (time, message): send it
React = Callable[[float, int], None]  # (time, rank or message): it is ready, it has arrived
Reactions = tuple[React, React]  # to a rank that is ready, to a message that has arrived


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RingRun:
    """What happened, seconds. Messages [N, N], row the *receiver*, column the sender; NaN where there was none."""

    finish_s: F64  # [N] when each rank has sent and received everything
    begin_s: F64  # [N, N] when a message starts to travel
    end_s: F64  # [N, N] when it has arrived

    @property
    def makespan_s(self) -> float:
        return float(self.finish_s.max())


def run_ring(cost: ArrayLike, start: ArrayLike, semantics: Semantics) -> RingRun:
    """Every pair has a link of its own. ``cost`` [N, N], ``start`` [N]: as in ``maxplus.ring_finish``, no batch."""
    costs, starts = check(cost, start, semantics)
    _refuse_batch(costs, starts)
    n = len(starts)
    in_order = costs.ravel()[_places(n)]
    seconds = in_order.tolist()
    finish = starts.tolist()
    heap: Heap = [(time, -1 - rank) for rank, time in enumerate(finish)]
    heapify(heap)
    begin = [np.nan] * len(seconds)
    push = heappush

    def send(time: float, message: int) -> None:
        begin[message] = time
        push(heap, (time + seconds[message], message))

    ready, arrived = _RULES[semantics](n, (in_order >= 0).tolist(), send, finish)
    pop = heappop
    while heap:
        time, event = pop(heap)
        if event >= 0:
            arrived(time, event)
        else:
            ready(time, -1 - event)
    begins = _matrix(n, begin)
    return RingRun(finish_s=np.array(finish), begin_s=begins, end_s=begins + costs)


def run_shared(num_bytes: ArrayLike, start: ArrayLike, semantics: Semantics, topology: Topology) -> RingRun:
    """Messages of ``num_bytes`` [N, N] (row the *receiver*; 0: none) over shared links; ``start`` [N] seconds.

    A message waits for its pair's latency, then its bytes flow at the max-min fair rate. Posted messages of a rank
    all start at once: here the links say what they share, so nothing needs to be assumed about an egress.
    """
    sizes = np.asarray(num_bytes, np.float64)
    if not (sizes >= 0).all():
        raise CostError("every message must be of 0 bytes or more")
    sizes, starts = check(np.where(sizes > 0, sizes, -np.inf), start, semantics)
    _refuse_batch(sizes, starts)
    n = len(starts)
    if topology.ranks != n:
        raise CostError(f"the messages are of {n} ranks, the topology has {topology.ranks} devices")
    places = _places(n)
    amounts = sizes.ravel()[places].tolist()
    begin, end = [np.nan] * len(amounts), [np.nan] * len(amounts)
    links = SharedLinks(topology, amounts, places, begin)
    finish = starts.tolist()
    ready, arrived = _SHARED_RULES[semantics](n, [a > -np.inf for a in amounts], links.send, finish)
    for rank, time in enumerate(starts.tolist()):
        heappush(links.heap, (time, -1 - rank))
    heap = links.heap
    while heap:
        time = heap[0][0]
        while heap and heap[0][0] == time:  # all that happens now, before rates are shared out again
            _, event = heappop(heap)
            if event < 0:
                ready(time, -1 - event)
                continue
            if links.happens(time, event):
                message = event % (n * n)
                end[message] = time
                arrived(time, message)
        links.share(time)
    return RingRun(finish_s=np.array(finish), begin_s=_matrix(n, begin), end_s=_matrix(n, end))


def _refuse_batch(costs: F64, starts: F64) -> None:
    if costs.ndim != 2 or starts.ndim != 1:
        raise CostError(f"events take one ring at a time, not costs {costs.shape} and starts {starts.shape}")


@lru_cache(maxsize=16)
def _places(n: int) -> NDArray[np.int64]:
    """Where message k N + s stands in a flat [receiver, sender] matrix: (N - 1) N numbers."""
    k, s = np.divmod(np.arange((n - 1) * n), n)
    return (s + k + 1) % n * n + s


@lru_cache(maxsize=16)
def _ends(n: int) -> tuple[list[int], list[int]]:
    """Sender and receiver of each message. Shared between runs: read only."""
    receivers, senders = np.divmod(_places(n), n)
    return senders.tolist(), receivers.tolist()


@lru_cache(maxsize=16)
def _intos(n: int) -> list[int]:
    """What a rank gets in the round in which it sends message k N + s: k N + (s - k - 1 mod N). Read only."""
    k, s = np.divmod(np.arange((n - 1) * n), n)
    into: list[int] = (k * n + (s - k - 1) % n).tolist()
    return into


def _matrix(n: int, of_messages: list[float]) -> F64:
    """[N, N] row the receiver; NaN on the diagonal."""
    matrix = np.full(n * n, np.nan)
    matrix[_places(n)] = of_messages
    return matrix.reshape(n, n)


# What ranks do. Each rule gets N, which messages exist, how to send one, and where to write finish times.
# `at` is what a rank sends in the round that it is in: N more a round. These functions are most of what a run costs.


def _rendezvous(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    senders, receivers = _ends(n)
    intos, size = _intos(n), len(exists)
    at = list(range(-n, 0))
    waits = [0] * n  # messages of its round that are still to end, sent or received
    there = [0 if some else -1 for some in exists]  # how many ends of a message have reached its round; -1: no message

    def enter(time: float, rank: int) -> None:
        while True:
            out = at[rank] = at[rank] + n
            if out >= size:
                finish[rank] = time
                return
            wait = 0
            ends = there[out]
            if ends == 0:
                there[out] = wait = 1
            elif ends > 0:
                wait = 1
                send(time, out)
            into = intos[out]
            ends = there[into]
            if ends == 0:
                there[into] = 1
                wait += 1
            elif ends > 0:
                wait += 1
                send(time, into)
            if wait:
                waits[rank] = wait
                return

    def arrived(time: float, message: int) -> None:
        rank = senders[message]
        if waits[rank] == 1:
            enter(time, rank)
        else:
            waits[rank] = 1
        rank = receivers[message]
        if waits[rank] == 1:
            enter(time, rank)
        else:
            waits[rank] = 1

    return enter, arrived


def _barrier(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    rounds = [[m for m in range(k, k + n) if exists[m]] for k in range(0, len(exists), n)]
    there = [False] * n
    current, left, missing = 0, len(rounds[0]) if rounds else 0, n

    def ready(time: float, rank: int) -> None:
        nonlocal missing
        if n == 1:
            return
        there[rank] = True
        missing -= 1
        for sender in {rank, (rank - 1) % n}:  # round 1, the only one that ranks enter one by one
            if exists[sender] and there[sender] and there[(sender + 1) % n]:
                send(time, sender)
        if left == 0 and missing == 0:
            advance(time)

    def advance(time: float) -> None:
        nonlocal current, left
        while True:
            current += 1
            if current == n - 1:
                finish[:] = [time] * n
                return
            left = len(rounds[current])
            for message in rounds[current]:
                send(time, message)
            if left:
                return

    def arrived(time: float, message: int) -> None:
        nonlocal left
        left -= 1
        if left == 0 and missing == 0:
            advance(time)

    return ready, arrived


def _eager(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    senders, receivers = _ends(n)
    intos, size = _intos(n), len(exists)
    at = list(range(-n, 0))
    waits = [0] * n
    expects = [-1] * n  # what a rank waits to receive
    pending = exists.copy()  # not yet arrived before its receiver came to the round

    def enter(time: float, rank: int) -> None:
        while True:
            out = at[rank] = at[rank] + n
            if out >= size:
                finish[rank] = time
                return
            wait = 0
            if pending[out]:  # nobody but its sender can have sent it
                wait = 1
                send(time, out)
            into = intos[out]
            if pending[into]:
                wait += 1
                expects[rank] = into
            if wait:
                waits[rank] = wait
                return

    def arrived(time: float, message: int) -> None:
        rank = receivers[message]
        if expects[rank] != message:
            pending[message] = False
        elif waits[rank] == 1:
            enter(time, rank)
        else:
            waits[rank] = 1
        rank = senders[message]
        if waits[rank] == 1:
            enter(time, rank)
        else:
            waits[rank] = 1

    return enter, arrived


def _posted(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    senders, receivers = _ends(n)
    size = len(exists)

    def ready(time: float, rank: int) -> None:
        if finish[rank] < time:
            finish[rank] = time
        send_from(time, rank)

    def send_from(time: float, message: int) -> None:
        while message < size:
            if exists[message]:
                send(time, message)
                return
            message += n

    def arrived(time: float, message: int) -> None:
        rank = senders[message]
        if finish[rank] < time:  # the latest of a rank's own messages ends it
            finish[rank] = time
        rank = receivers[message]
        if finish[rank] < time:
            finish[rank] = time
        send_from(time, message + n)

    return ready, arrived


def _together(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    """Posted where the links decide who goes first: a rank's messages all start at once and share what they share."""
    senders, receivers = _ends(n)

    def ready(time: float, rank: int) -> None:
        finish[rank] = max(finish[rank], time)
        for message in range(rank, len(exists), n):
            if exists[message]:
                send(time, message)

    def arrived(time: float, message: int) -> None:
        for rank in (senders[message], receivers[message]):
            finish[rank] = max(finish[rank], time)

    return ready, arrived


class _Rule(Protocol):
    def __call__(self, n: int, exists: list[bool], send: Start, finish: list[float], /) -> Reactions: ...


_RULES: dict[Semantics, _Rule] = {
    "barrier": _barrier,
    "eager": _eager,
    "rendezvous": _rendezvous,
    "posted": _posted,
}
_SHARED_RULES: dict[Semantics, _Rule] = _RULES | {"posted": _together}
