"""A ring all2all event by event: a heap of (time, event), and ranks that react.

It simulates the semantics of ``simulator.maxplus`` from what ranks do, not by its recursion: the tests hold
one against the other. Beyond it, messages may share links (``run_shared``): they flow like fluids at the rates
of max-min fair sharing, and all rates change whenever a message joins or leaves.

An event is a number. Message k N + s is what rank s sends in round k + 1 (to s + k + 1 mod N): its event
is that it has arrived. -1 - r is rank r becoming ready. Numbers from N N on belong to the shared links.
Simultaneous events may come in any order: ranks wait for sets of messages, so no time depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.cost import CostError
from simulator.maxplus import Semantics, check
from simulator.topology import Topology

F64 = NDArray[np.float64]
Heap = list[tuple[float, int]]
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
    seconds = costs.ravel()[_places(n)].tolist()
    heap: Heap = []
    begin = [np.nan] * len(seconds)
    push = heappush

    def send(time: float, message: int) -> None:
        begin[message] = time
        push(heap, (time + seconds[message], message))

    finish = starts.tolist()
    ready, arrived = _RULES[semantics](n, [s > -np.inf for s in seconds], send, finish)
    for rank, time in enumerate(starts.tolist()):
        push(heap, (time, -1 - rank))
    pop = heappop
    while heap:
        time, event = pop(heap)
        if event >= 0:
            arrived(time, event)
        else:
            ready(time, -1 - event)
    sent = np.array(begin)
    return _result(finish, sent, sent + costs.ravel()[_places(n)])


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
    links = _SharedLinks(topology, amounts, places, begin)
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
            for message in links.happens(time, event):
                end[message] = time
                arrived(time, message)
        links.share(time)
    return _result(finish, begin, end)


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


def _result(finish: list[float], begin: ArrayLike, end: ArrayLike) -> RingRun:
    n = len(finish)
    matrices = np.full((2, n * n), np.nan)
    places = _places(n)
    matrices[0, places], matrices[1, places] = begin, end
    begins, ends = matrices.reshape(2, n, n)
    return RingRun(finish_s=np.array(finish), begin_s=begins, end_s=ends)


# What ranks do. Each rule gets N, which messages exist, how to send one, and where to write finish times.
# Rank numbers below zero are Python's, counted from the end: r - k - 1 is the sender to r in round k + 1.


def _rendezvous(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    senders, receivers = _ends(n)
    at = [-1] * n  # the round a rank is in
    waits = [0] * n  # its messages of that round that are still to end, sent or received
    last = n - 1

    def enter(time: float, rank: int) -> None:
        while True:
            k = at[rank] = at[rank] + 1
            if k == last:
                finish[rank] = time
                return
            out = k * n + rank
            into = out - k - 1 if rank > k else out - k - 1 + n
            wait = 0
            if exists[out]:
                wait = 1
                if at[rank + k + 1 - n] == k:  # the receiver is there already
                    send(time, out)
            if exists[into]:
                wait += 1
                if at[rank - k - 1] == k:
                    send(time, into)
            if wait:
                waits[rank] = wait
                return

    def arrived(time: float, message: int) -> None:
        sender, receiver = senders[message], receivers[message]
        if waits[sender] == 1:
            enter(time, sender)
        else:
            waits[sender] = 1
        if waits[receiver] == 1:
            enter(time, receiver)
        else:
            waits[receiver] = 1

    return enter, arrived


def _barrier(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    counts = [sum(exists[k * n : k * n + n]) for k in range(n - 1)]
    there = [False] * n
    state = {"round": 0, "left": counts[0] if counts else 0, "ready": 0}

    def ready(time: float, rank: int) -> None:
        if n == 1:
            return
        there[rank] = True
        state["ready"] += 1
        for sender in {rank, (rank - 1) % n}:  # round 1, the only one that ranks enter one by one
            if exists[sender] and there[sender] and there[(sender + 1) % n]:
                send(time, sender)
        advance(time)

    def advance(time: float) -> None:
        while state["left"] == 0 and state["ready"] == n:
            k = state["round"] = state["round"] + 1
            if k == n - 1:
                finish[:] = [time] * n
                return
            state["left"] = counts[k]
            for message in range(k * n, k * n + n):
                if exists[message]:
                    send(time, message)

    def arrived(time: float, message: int) -> None:
        state["left"] -= 1
        if state["left"] == 0:
            advance(time)

    return ready, arrived


def _eager(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    senders, receivers = _ends(n)
    at = [-1] * n
    waits = [0] * n
    early = [False] * len(exists)  # arrived before their receiver came to the round
    last = n - 1

    def enter(time: float, rank: int) -> None:
        while True:
            k = at[rank] = at[rank] + 1
            if k == last:
                finish[rank] = time
                return
            out = k * n + rank
            into = out - k - 1 if rank > k else out - k - 1 + n
            wait = 0
            if exists[out]:
                wait = 1
                send(time, out)
            if exists[into] and not early[into]:
                wait += 1
            if wait:
                waits[rank] = wait
                return

    def arrived(time: float, message: int) -> None:
        sender, receiver = senders[message], receivers[message]
        if at[receiver] == message // n:
            if waits[receiver] == 1:
                enter(time, receiver)
            else:
                waits[receiver] = 1
        else:
            early[message] = True
        if waits[sender] == 1:
            enter(time, sender)
        else:
            waits[sender] = 1

    return enter, arrived


def _posted(n: int, exists: list[bool], send: Start, finish: list[float]) -> Reactions:
    senders, receivers = _ends(n)
    size = len(exists)

    def send_from(time: float, message: int) -> None:
        while message < size and not exists[message]:
            message += n
        if message < size:
            send(time, message)

    def ready(time: float, rank: int) -> None:
        finish[rank] = max(finish[rank], time)
        send_from(time, rank)

    def arrived(time: float, message: int) -> None:
        sender, receiver = senders[message], receivers[message]
        if finish[sender] < time:  # the latest of a rank's own messages ends it
            finish[sender] = time
        if finish[receiver] < time:
            finish[receiver] = time
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


class _SharedLinks:
    """Fluid flows. Events N N + m: message m's latency is over; 2 N N + v: the first flow ends, if v is current."""

    def __init__(
        self, topology: Topology, amounts: Sequence[float], places: NDArray[np.int64], begin: list[float]
    ) -> None:
        n = topology.ranks
        pairs = [divmod(int(place), n) for place in places]
        self.heap: Heap = []
        self._begin = begin
        self._amounts = amounts
        self._latency = [float(topology.latency_s[s, r]) for r, s in pairs]
        self._capacity = topology.capacity_bytes_per_s.tolist()
        limits = np.isfinite(topology.capacity_bytes_per_s).tolist()  # a link without limit slows no one
        self._routes = [tuple(link for link in topology.routes[s][r] if limits[link]) for r, s in pairs]
        self._square = n * n
        self._left: dict[int, float] = {}  # bytes to go, by message
        self._rate: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._version = 0
        self._now = 0.0
        self._changed = False

    def send(self, time: float, message: int) -> None:
        self._begin[message] = time
        heappush(self.heap, (time + self._latency[message], self._square + message))

    def happens(self, time: float, event: int) -> list[int]:
        """The messages that have arrived by this event."""
        if event < 2 * self._square:
            self._left[event - self._square] = self._amounts[event - self._square]
            self._rate[event - self._square] = 0.0
            self._changed = True
            return []
        if event != 2 * self._square + self._version:
            return []
        done = [message for message, end in self._ends.items() if end <= time]
        for message in done:
            del self._left[message], self._rate[message], self._ends[message]
        self._changed = True
        return done

    def share(self, time: float) -> None:
        """Bring all flows up to now and share the links out again, if a flow has come or gone."""
        if not self._changed:
            return
        passed = time - self._now
        for message, rate in self._rate.items():
            self._left[message] = max(0.0, self._left[message] - rate * passed)
        self._now, self._changed = time, False
        self._version += 1
        self._rate = fair_rates({message: self._routes[message] for message in self._left}, self._capacity)
        self._ends = {message: time + left / self._rate[message] for message, left in self._left.items()}
        if self._ends:
            heappush(self.heap, (min(self._ends.values()), 2 * self._square + self._version))


def fair_rates(routes: dict[int, tuple[int, ...]], capacity: Sequence[float]) -> dict[int, float]:
    """Max-min fair rates, in the capacity's unit, of flows over links: progressive filling.

    All rates grow alike until a link is full; its flows keep their rate, the rest go on. So every flow has a
    full link on which no other is faster (Bertsekas and Gallager, Data Networks, section 6.5.2).
    """
    members: dict[int, list[int]] = {}
    for flow, route in routes.items():
        for link in route:
            members.setdefault(link, []).append(flow)
    left = {link: capacity[link] for link in members}
    count = {link: len(flows) for link, flows in members.items()}
    shares = [(left[link] / count[link], link) for link in members]
    heapify(shares)
    rates: dict[int, float] = {}
    while len(rates) < len(routes):
        share, link = heappop(shares)
        if not count[link]:
            continue
        now = left[link] / count[link]
        if now > share * (1 + 1e-12):  # a link's share only grows while others fill: look again later
            heappush(shares, (now, link))
            continue
        for flow in members[link]:
            if flow not in rates:
                rates[flow] = now
                for other in routes[flow]:
                    left[other] -= now
                    count[other] -= 1
    return rates
