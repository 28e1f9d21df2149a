"""Hosts, their devices and NICs, switches and links: what a machine is made of, and its graph.

A host's devices hang on a crossbar of their own, each by a port of the intra-host bandwidth; all of them share the
host's NIC, where it has one. Bandwidths are bit/s per direction, latencies seconds.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import networkx as nx

from simulator.cost import CostError, PairCosts
from simulator.topology import Topology, build

UNLIMITED = math.inf


class MachineError(ValueError):
    """A machine description that can't be used: one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """``count`` hosts alike (named name1, name2, ... if more than one), each of ``devices`` devices.

    A message between two devices of a host takes ``intra_latency_s``, one through the NIC ``nic_latency_s`` on each
    side. ``flop_s`` and ``memory_byte_s`` are one device's compute rates; 0: not known.
    """

    name: str
    count: int = 1
    devices: int = 1
    intra_bandwidth_bit_s: float = UNLIMITED
    intra_latency_s: float = 0.0
    nic_bandwidth_bit_s: float = UNLIMITED
    nic_latency_s: float = 0.0
    flop_s: float = 0.0
    memory_byte_s: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}{number}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A cable between two hosts or switches, full duplex; ``one_way``: from the first end to the second only."""

    ends: tuple[str, str]
    bandwidth_bit_s: float
    latency_s: float = 0.0
    one_way: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """Rank r runs on device r, counted host by host. ``fitted`` costs, if there, go before derived ones."""

    name: str
    hosts: tuple[Host, ...]
    switches: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    fitted: PairCosts | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def host_of(self) -> tuple[str, ...]:
        """[N] the host of each rank."""
        return tuple(name for host in self.hosts for name in host.names for _ in range(host.devices))

    @property
    def ranks(self) -> int:
        return len(self.host_of)

    def compute_rates(self) -> tuple[tuple[float, float], ...]:
        """[N] (flop/s, memory bytes/s) of each rank's device; 0: not known."""
        return tuple((h.flop_s, h.memory_byte_s) for h in self.hosts for _ in range(h.count * h.devices))

    def topology(self) -> Topology:
        """The graph, numbered links and routes. MachineError where two devices have no path."""
        try:
            return build(*_graph(self))
        except CostError as error:
            raise MachineError(f"machine {self.name}: {error}") from None

    def pair_costs(self) -> PairCosts:
        """theta and gamma of each ordered pair: fitted, or those of the route alone."""
        return self.fitted if self.fitted is not None else self.topology().pair_costs()


def _graph(machine: Machine) -> tuple[nx.DiGraph, tuple[str, ...]]:
    graph = nx.DiGraph()
    devices, doors = [], {}  # the node of a host at which its links end

    def cable(a: str, b: str, bandwidth_bit_s: float, latency_s: float) -> None:
        graph.add_edge(a, b, bandwidth_bit_s=bandwidth_bit_s, latency_s=latency_s)
        graph.add_edge(b, a, bandwidth_bit_s=bandwidth_bit_s, latency_s=latency_s)

    for switch in machine.switches:
        graph.add_node(switch, kind="switch", host=None)
        doors[switch] = switch
    for host in machine.hosts:
        for name in host.names:
            graph.add_node(name, kind="host", host=name)
            doors[name] = f"{name}/nic"
            graph.add_node(doors[name], kind="nic", host=name)
            cable(name, doors[name], host.nic_bandwidth_bit_s, host.nic_latency_s)
            for number in range(host.devices):
                device = f"{name}/{number}"
                graph.add_node(device, kind="device", host=name)
                # Two ports lie between two devices: half the latency on each
                cable(device, name, host.intra_bandwidth_bit_s, host.intra_latency_s / 2)
                devices.append(device)
    for link in machine.links:
        a, b = (doors[end] for end in link.ends)
        graph.add_edge(a, b, bandwidth_bit_s=link.bandwidth_bit_s, latency_s=link.latency_s)
        if not link.one_way:
            graph.add_edge(b, a, bandwidth_bit_s=link.bandwidth_bit_s, latency_s=link.latency_s)
    return graph, tuple(devices)


# Checks


def _check(machine: Machine) -> None:
    where = f"machine {machine.name}"
    if not machine.hosts:
        raise MachineError(f"{where} has no hosts: give it one [[hosts]] at least")
    for host in machine.hosts:
        for key in ("count", "devices"):
            if getattr(host, key) < 1:
                raise MachineError(f"{where}: {key} of host {host.name} is {getattr(host, key)}; it must be >= 1")
        _check_numbers(host, f"{where}: host {host.name}")
    known = [name for host in machine.hosts for name in host.names] + list(machine.switches)
    for name in known:
        if not name or "/" in name:
            raise MachineError(f"{where}: {name!r} is no name of a host or switch; it must be non-empty, without '/'")
        if known.count(name) > 1:
            raise MachineError(f"{where}: two hosts or switches are called {name!r}; names must differ")
    seen = set()
    for link in machine.links:
        _check_numbers(link, f"{where}: link {' - '.join(link.ends)}")
        for end in link.ends:
            if end not in known:
                raise MachineError(f"{where}: a link ends at {end!r}, which is not there; {nearest(end, known)}")
        if link.ends[0] == link.ends[1]:
            raise MachineError(f"{where}: a link leads from {link.ends[0]} to itself")
        for ends in {link.ends} if link.one_way else {link.ends, link.ends[::-1]}:
            if ends in seen:
                raise MachineError(f"{where}: two links lead from {ends[0]} to {ends[1]}; give one with their sum")
            seen.add(ends)
    if machine.fitted is not None and machine.fitted.ranks != machine.ranks:
        raise MachineError(
            f"{where}: the fitted costs are of {machine.fitted.ranks} ranks, the hosts have {machine.ranks} devices"
        )


def _check_numbers(part: Host | Link, where: str) -> None:
    for entry in fields(part):
        value = getattr(part, entry.name)
        if entry.name.endswith("bandwidth_bit_s") and not value > 0:
            raise MachineError(f"{where}: {entry.name} is {value}; it must be > 0")
        if entry.name in ("latency_s", "intra_latency_s", "nic_latency_s", "flop_s", "memory_byte_s") and not (
            0 <= value < math.inf
        ):
            raise MachineError(f"{where}: {entry.name} is {value}; it must be finite and >= 0")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses ``name``: the nearest known name, or some of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"did you mean {close[0]!r}?" if close else f"known: {some}"
