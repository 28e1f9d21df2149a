"""Messages that share links flow like fluids, at the rates of max-min fair sharing.

Rates change whenever a message joins or leaves, and stay in between: so there is an event at each of these moments, and
none else. ``events.run_shared`` turns what ranks do into such messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from simulator.topology import Topology

Heap = list[tuple[float, int]]  # (time, event)


class SharedLinks:
    """The heap of a ring whose messages share links. ``send`` a message, and after all events of a moment ``share``.

    Events N N + m: message m's latency is over; (2 + v) N N + m: it ends, if its rate is still its v-th.

    A flow that comes or goes changes the rates of those that it shares a link with, of those that these share one
    with, and so on; nobody else's. So only that component is shared out again, and a flow whose rate stays is left
    alone.
    """

    def __init__(
        self, topology: Topology, amounts: Sequence[float], places: NDArray[np.int64], begin: list[float]
    ) -> None:
        n = topology.ranks
        pairs = [divmod(int(place), n) for place in places]
        self.heap: Heap = []
        self._begin = begin
        self._latency = [float(topology.latency_s[s, r]) for r, s in pairs]
        self._capacity = topology.capacity_bytes_per_s.tolist()
        limits = np.isfinite(topology.capacity_bytes_per_s).tolist()  # a link without limit slows no one
        self._routes = [tuple(link for link in topology.routes[s][r] if limits[link]) for r, s in pairs]
        self._square = n * n
        self._on: list[set[int]] = [set() for _ in self._capacity]  # flows, by link
        self._left = list(amounts)  # bytes to go, of each message, at `since`
        self._rate = [0.0] * len(amounts)
        self._since = [0.0] * len(amounts)
        self._turn = [0] * len(amounts)  # how often its rate has been set
        self._touched: set[int] = set()  # links on which a flow has come or gone

    def send(self, time: float, message: int) -> None:
        self._begin[message] = time
        heappush(self.heap, (time + self._latency[message], self._square + message))

    def happens(self, time: float, event: int) -> bool:
        """Whether a message arrives by this event: event mod N N."""
        kind, message = divmod(event, self._square)
        route = self._routes[message]
        if kind == 1:
            for link in route:
                self._on[link].add(message)
            self._since[message] = time
        elif kind - 2 == self._turn[message]:
            for link in route:
                self._on[link].discard(message)
        else:
            return False
        self._touched.update(route)
        return kind > 1

    def share(self, time: float) -> None:
        """Share the touched links out again; flows whose rate changes are brought up to now and get a new end."""
        if not self._touched:
            return
        flows = self._component()
        rates = fair_rates({flow: self._routes[flow] for flow in flows}, self._capacity)
        for flow, rate in rates.items():
            old = self._rate[flow]
            if rate == old:
                continue
            left = max(0.0, self._left[flow] - old * (time - self._since[flow]))
            self._left[flow], self._since[flow], self._rate[flow] = left, time, rate
            self._turn[flow] += 1
            heappush(self.heap, (time + left / rate, (2 + self._turn[flow]) * self._square + flow))

    def _component(self) -> list[int]:
        """All flows that touched links carry, that those flows' other links carry, and so on. Forgets the touches."""
        links, self._touched = self._touched, set()
        reached = list(links)
        flows: set[int] = set()
        for link in reached:
            for flow in self._on[link] - flows:
                flows.add(flow)
                for other in self._routes[flow]:
                    if other not in links:
                        links.add(other)
                        reached.append(other)
        return sorted(flows)


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
