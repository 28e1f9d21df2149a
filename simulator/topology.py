"""Hosts, devices, switches and links as a graph; routes over it; what a pair costs alone.

Nodes of the networkx graph carry ``kind`` (device, host, nic or switch) and ``host`` (None for a switch).
Edges are directed (a cable is two) and carry ``bandwidth_bit_s`` and ``latency_s``. A route takes the fewest
links; among equals a hash of the pair chooses, as switches that spread flows over equal paths do. No route
leads through a host or a device that is not its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from simulator.cost import CostError, PairCosts
from simulator.keyed import mix64

F64 = NDArray[np.float64]
INWARDS = {("nic", "host"), ("host", "device")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topology:
    """Routes of all ordered pairs of N devices over L directed links. Rank r is ``devices[r]``."""

    graph: nx.DiGraph
    devices: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # [L] ends of each link
    capacity_bytes_per_s: F64  # [L]
    routes: tuple[tuple[tuple[int, ...], ...], ...]  # [sender][receiver] link numbers in order; () on the diagonal
    latency_s: F64  # [N, N] row the sender: the sum over the route

    @property
    def ranks(self) -> int:
        return len(self.devices)

    def pair_costs(self) -> PairCosts:
        """theta (of the slowest link) and gamma (summed latency) of each pair when it is alone."""
        theta = np.zeros((self.ranks, self.ranks))
        for sender, row in enumerate(self.routes):
            for receiver, route in enumerate(row):
                if route:
                    theta[sender, receiver] = 1 / self.capacity_bytes_per_s[list(route)].min()
        return PairCosts(theta_s_per_byte=theta, gamma_s=self.latency_s)


def build(graph: nx.DiGraph, devices: tuple[str, ...]) -> Topology:
    """Number the links and find the routes. CostError where two devices have no path or no finite link."""
    links = tuple(graph.edges)
    number = {link: index for index, link in enumerate(links)}
    latency = np.array([graph.edges[link]["latency_s"] for link in links])
    capacity = np.array([graph.edges[link]["bandwidth_bit_s"] / 8 for link in links])
    routes, latencies = [], np.zeros((len(devices), len(devices)))
    for s, sender in enumerate(devices):
        row = _routes_from(graph, sender, devices)
        routes.append(tuple(tuple(number[link] for link in route) for route in row))
        for r, route in enumerate(routes[-1]):
            if r != s and not np.isfinite(capacity[list(route)]).any():
                raise CostError(f"no link between {sender} and {devices[r]} has a bandwidth: give one of them one")
            latencies[s, r] = latency[list(route)].sum()
    return Topology(
        graph=graph,
        devices=devices,
        links=links,
        capacity_bytes_per_s=capacity,
        routes=tuple(routes),
        latency_s=latencies,
    )


def _routes_from(graph: nx.DiGraph, sender: str, devices: tuple[str, ...]) -> list[list[tuple[str, str]]]:
    kind, host = dict(graph.nodes(data="kind")), dict(graph.nodes(data="host"))
    own = {node for node in graph if host[node] == host[sender] and (node == sender or kind[node] != "device")}
    # Away from home a packet may climb down nic -> host -> device, but never out of that host again.
    forward = nx.subgraph_view(
        graph, filter_edge=lambda u, v: u in own or kind[u] == "switch" or (kind[u], kind[v]) in INWARDS
    )
    before = nx.predecessor(forward, sender)
    found = []
    for receiver in devices:
        if receiver not in before:
            raise CostError(f"there is no path from {sender} to {receiver}: add a link between their hosts or switches")
        node = receiver
        route: list[tuple[str, str]] = []
        while node != sender:
            choices = before[node]
            if len(choices) > 1:
                key = mix64(crc32(sender.encode()), crc32(receiver.encode()), len(route))
                choices = [sorted(choices)[key % len(choices)]]
            route.append((choices[0], node))
            node = choices[0]
        found.append(route[::-1])
    return found
