"""machine.toml: reading, writing, presets. docs/machine.md describes every key, hosts.py what they mean."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simulator.cost import Fit, PairCosts, ShortMessages, pair_costs
from simulator.hosts import Host as Host
from simulator.hosts import Link as Link
from simulator.hosts import Machine as Machine
from simulator.hosts import MachineError as MachineError
from simulator.hosts import nearest

MACHINE_VERSION = 1


Part = TypeVar("Part", Host, Link)
_TOP = ("version", "name", "switches", "hosts", "links", "fitted")
_FITTED = ("theta_s_per_byte", "gamma_s", "low_bytes", "high_bytes", "residual")
_SHORT = ("switch_bytes", "theta_s_per_byte", "gamma_s")


def measured(hosts: Iterable[str], fits: Mapping[tuple[int, int], Fit]) -> Machine:
    """The machine of a job: ``hosts`` names each rank's, ``fits`` the costs of every ordered pair.

    Links are not known, so none are given.
    """
    names = list(hosts)
    ranks = len(names)
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    if len({name for name, _ in runs}) < len(runs):  # ranks of a host apart: each rank stands for itself
        runs = [(f"rank{rank}", 1) for rank in range(ranks)]
    parts = tuple(Host(name=name.replace("/", "-") or "host", devices=devices) for name, devices in runs)
    return Machine(name="measured", hosts=parts, fitted=pair_costs(ranks, fits))


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
            raise MachineError(f"{key!r} is no key of {what}; {nearest(key, names)}")


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
    _refuse_unknown(table, (*_FITTED, "short"), "fitted")
    try:
        return PairCosts(
            theta_s_per_byte=np.array(table["theta_s_per_byte"], np.float64),
            gamma_s=np.array(table["gamma_s"], np.float64),
            low_bytes=float(table.get("low_bytes", 0.0)),
            high_bytes=float(table.get("high_bytes", math.inf)),
            short=_short(table["short"]) if "short" in table else None,
            residual=np.array(table["residual"], np.float64) if "residual" in table else None,
        )
    except KeyError as error:
        raise MachineError(f"fitted needs {error}") from None
    except (TypeError, ValueError) as error:
        raise MachineError(f"the fitted costs can't be used: {error}") from None


def _short(table: Any) -> ShortMessages:
    if not isinstance(table, dict):
        raise TypeError("short must be a table, written under [fitted.short]")
    _refuse_unknown(table, _SHORT, "fitted.short")
    return ShortMessages(**{name: np.array(table[name], np.float64) for name in _SHORT})


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
        lines += ["", "[fitted]", *_matrices(machine.fitted, _FITTED)]
        if machine.fitted.short is not None:
            lines += ["", "[fitted.short]", *_matrices(machine.fitted.short, _SHORT)]
    return "\n".join(lines) + "\n"


def _matrices(costs: PairCosts | ShortMessages, names: Iterable[str]) -> list[str]:
    values = ((name, getattr(costs, name)) for name in names)
    return [
        f"{name} = {_toml(value.tolist() if isinstance(value, np.ndarray) else value)}"
        for name, value in values
        if value is not None
    ]


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
        raise MachineError(f"there is no machine {name!r}; {nearest(name, PRESETS)}")
    return _PRESETS[name]()
