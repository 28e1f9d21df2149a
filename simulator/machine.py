"""machine.toml: hosts, their devices and NICs, switches and links; presets; reading and writing.

docs/machine.md describes every key. A host's devices hang on a crossbar of their own, each by a port of the intra-host
bandwidth; all of them share the host's NIC, where it has one. Bandwidths are bit/s per direction, latencies seconds.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import networkx as nx
import numpy as np

from simulator.cost import CostError, Fit, PairCosts
from simulator.topology import Topology, build

MACHINE_VERSION = 1
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
                raise MachineError(f"{where}: a link ends at {end!r}, which is not there; {_nearest(end, known)}")
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


def _nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses ``name``: the nearest known name, or some of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"did you mean {close[0]!r}?" if close else f"known: {some}"


# Reading and writing

Part = TypeVar("Part", Host, Link)
_TOP = ("version", "name", "switches", "hosts", "links", "fitted")
_FITTED = ("theta_s_per_byte", "gamma_s", "low_bytes", "high_bytes")


def measured(hosts: Iterable[str], fits: Mapping[tuple[int, int], Fit]) -> Machine:
    """The machine of a job: ``hosts`` names each rank's, ``fits`` the costs of every ordered pair.

    Where two lines were fitted to a pair, the second's: rows are long messages. Links are not known, so none are given.
    """
    names = list(hosts)
    ranks = len(names)
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    if len({name for name, _ in runs}) < len(runs):  # ranks of a host apart: each rank stands for itself
        runs = [(f"rank{rank}", 1) for rank in range(ranks)]
    theta, gamma = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
    for (sender, receiver), found in fits.items():
        theta[sender, receiver] = found.lines[-1].theta_s_per_byte
        gamma[sender, receiver] = found.lines[-1].gamma_s
    costs = PairCosts(
        theta_s_per_byte=theta,
        gamma_s=gamma,
        low_bytes=max((found.lines[0].low_bytes for found in fits.values()), default=0.0),
        high_bytes=min((found.lines[-1].high_bytes for found in fits.values()), default=math.inf),
    )
    parts = tuple(Host(name=name.replace("/", "-") or "host", devices=devices) for name, devices in runs)
    return Machine(name="measured", hosts=parts, fitted=costs)


def find(name: str) -> Machine:
    """A preset by its name, or a machine.toml by its path."""
    return preset(name) if name in PRESETS or not Path(name).exists() else read(Path(name))


def read(path: Path) -> Machine:
    """Read and check a machine.toml. MachineError for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(f"{path} can't be read: {error}") from None
    try:
        return parse(text)
    except MachineError as error:
        raise MachineError(f"{path}: {error}") from None


def parse(text: str) -> Machine:
    """A machine from the text of a machine.toml. MachineError where it is none."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(f"this is no TOML: {error}") from None
    _refuse_unknown(document, _TOP, "a machine")
    if document.get("version") != MACHINE_VERSION:
        raise MachineError(f"version is {document.get('version')!r}; this bitring reads {MACHINE_VERSION}")
    return Machine(
        name=_typed(document, "name", str, "a machine"),
        hosts=tuple(_part(Host, table, "a host") for table in _tables(document, "hosts")),
        switches=tuple(_strings(document.get("switches", []), "switches")),
        links=tuple(_part(Link, table, "a link") for table in _tables(document, "links")),
        fitted=_fitted(document["fitted"]) if "fitted" in document else None,
    )


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            raise MachineError(f"{key!r} is no key of {what}; {_nearest(key, names)}")


def _tables(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key, [])
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        raise MachineError(f"{key} must be tables, each written under [[{key}]]")
    return found


def _part(kind: type[Part], table: dict[str, Any], what: str) -> Part:
    _refuse_unknown(table, (entry.name for entry in fields(kind)), what)
    types = {"str": str, "int": int, "float": float, "bool": bool}
    values: dict[str, Any] = {}
    for entry in fields(kind):
        if entry.name == "ends":
            ends = tuple(_strings(table.get("ends"), "the ends of a link"))
            if len(ends) != 2:
                raise MachineError(f"a link has two ends, not {len(ends)}")
            values["ends"] = ends
        elif entry.name in table or entry.name in ("name", "bandwidth_bit_s"):
            values[entry.name] = _typed(table, entry.name, types[str(entry.type)], what)
    return kind(**values)


def _typed(table: dict[str, Any], key: str, kind: type, what: str) -> Any:
    if key not in table:
        raise MachineError(f"{what} needs {key!r}")
    value = table[key]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise MachineError(f"{key} of {what} is {value!r}; it must be of type {kind.__name__}")
    return value


def _strings(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise MachineError(f"{what} must be a list of names, not {value!r}")
    return value


def _fitted(table: Any) -> PairCosts:
    if not isinstance(table, dict):
        raise MachineError("fitted must be a table, written under [fitted]")
    _refuse_unknown(table, _FITTED, "fitted")
    try:
        theta, gamma = (np.array(table[key], np.float64) for key in _FITTED[:2])
        low, high = float(table.get("low_bytes", 0.0)), float(table.get("high_bytes", math.inf))
        return PairCosts(theta_s_per_byte=theta, gamma_s=gamma, low_bytes=low, high_bytes=high)
    except KeyError as error:
        raise MachineError(f"fitted needs {error}") from None
    except (TypeError, ValueError) as error:
        raise MachineError(f"the fitted costs can't be used: {error}") from None


def write(machine: Machine, path: Path) -> None:
    """Write a machine.toml that ``read`` gives back equal; atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(dumps(machine), encoding="utf-8")
    temporary.replace(path)


def dumps(machine: Machine) -> str:
    """The text of a machine.toml. Keys that have their default are left out."""
    lines = [f"version = {MACHINE_VERSION}", f"name = {_toml(machine.name)}"]
    if machine.switches:
        lines.append(f"switches = {_toml(machine.switches)}")
    for key, parts in (("hosts", machine.hosts), ("links", machine.links)):
        for part in parts:
            lines += ["", f"[[{key}]]"]
            lines += [f"{e.name} = {_toml(getattr(part, e.name))}" for e in fields(part) if _said(part, e)]
    if machine.fitted is not None:
        lines += ["", "[fitted]"]
        for name in _FITTED:
            value = getattr(machine.fitted, name)
            lines.append(f"{name} = {_toml(value.tolist() if isinstance(value, np.ndarray) else value)}")
    return "\n".join(lines) + "\n"


def _said(part: Host | Link, entry: Any) -> bool:
    return bool(getattr(part, entry.name) != entry.default)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # TOML escapes as JSON does, and DEL besides
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


# Presets: round figures of such machines, to start from; calibrate for real ones.


def _nvlink() -> Machine:
    host = Host(
        name="host",
        devices=4,
        intra_bandwidth_bit_s=2.4e12,  # 300 GB/s a direction and device
        intra_latency_s=5e-6,
        flop_s=1.9e13,
        memory_byte_s=1.5e12,
    )
    return Machine(name="nvlink-4", hosts=(host,))


def _two_hosts() -> Machine:
    host = Host(name="h", count=2, devices=1, nic_bandwidth_bit_s=1e10, nic_latency_s=1e-5)
    link = Link(ends=("h1", "h2"), bandwidth_bit_s=1e10, latency_s=1e-5)
    return Machine(name="two-hosts-10g", hosts=(host,), links=(link,))


def _four_by_four() -> Machine:
    host = Host(
        name="h",
        count=4,
        devices=4,
        intra_bandwidth_bit_s=2.4e12,
        intra_latency_s=5e-6,
        nic_bandwidth_bit_s=1e11,
        nic_latency_s=2e-6,
        flop_s=1.9e13,
        memory_byte_s=1.5e12,
    )
    links = tuple(Link(ends=(name, "switch"), bandwidth_bit_s=1e11, latency_s=1e-6) for name in host.names)
    return Machine(name="four-by-four-100g", hosts=(host,), switches=("switch",), links=links)


def _fat_tree() -> Machine:
    """Two levels: 8 leaves of 8 hosts, each leaf on all 8 spines, so as much bandwidth up as down."""
    host = Host(name="h", count=64, nic_bandwidth_bit_s=1e11, nic_latency_s=2e-6)
    leaves, spines = [[f"{kind}{i}" for i in range(1, 9)] for kind in ("leaf", "spine")]
    down = [(name, leaves[number // 8]) for number, name in enumerate(host.names)]
    up = [(leaf, spine) for leaf in leaves for spine in spines]
    links = tuple(Link(ends=ends, bandwidth_bit_s=1e11, latency_s=5e-7) for ends in down + up)
    return Machine(name="fat-tree-64", hosts=(host,), switches=(*leaves, *spines), links=links)


def _emulated() -> Machine:
    """Four hosts, every directed pair a link of its own: what bench/netlab builds."""
    host = Host(name="h", count=4)
    pairs = [(a, b) for a in host.names for b in host.names if a < b]
    links = tuple(Link(ends=ends, bandwidth_bit_s=1e8, latency_s=1e-4) for ends in pairs)
    return Machine(name="emulated-4", hosts=(host,), links=links)


_PRESETS: dict[str, Callable[[], Machine]] = {
    "nvlink-4": _nvlink,
    "two-hosts-10g": _two_hosts,
    "four-by-four-100g": _four_by_four,
    "fat-tree-64": _fat_tree,
    "emulated-4": _emulated,
}
PRESETS = tuple(_PRESETS)


def preset(name: str) -> Machine:
    """One of ``PRESETS``. MachineError for another name."""
    if name not in _PRESETS:
        raise MachineError(f"there is no machine {name!r}; {_nearest(name, PRESETS)}")
    return _PRESETS[name]()
