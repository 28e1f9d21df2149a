"""What the offline commands share: a workload (recorded, or made from a graph), a machine, how messages go."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from simulator import machine as machines
from simulator import workload as workloads
from simulator.assignment import Assigned, assign_workload
from simulator.choice import build, parameters, told
from simulator.cost import CostError, PairCosts
from simulator.epoch import Load, with_bits
from simulator.exchanges import Budget
from simulator.machine import Host, Link, Machine, MachineError
from simulator.made import MadeError, Rates
from simulator.methods import MethodError
from simulator.policy import ProblemError, SolverError
from simulator.replicas import Choice
from simulator.wire import Wire
from simulator.workload import Workload, WorkloadError
from toolkit import counts, methods
from toolkit import plan as planning
from toolkit.commands.data import configuration
from toolkit.errors import UserError
from toolkit.graph import cache

ASSUMED_FLOP_S, ASSUMED_MEMORY_BYTE_S = 5e10, 1e10  # of a core or two
AS_RECORDED = "as recorded"
log = logging.getLogger("bitring")


def source(args: argparse.Namespace) -> tuple[Workload, Machine]:
    """The workload and the machine of a command line."""
    if args.graph is None:
        refuse_graph_options(args)
        if args.workload is None:
            raise UserError("give WORKLOAD and --machine, or --graph and -k for a workload without a run")
        if args.machine is None:
            raise UserError(without_machine(args.workload))
        return read_both(Path(args.workload), args.machine)
    if args.workload is not None:
        raise UserError(f"{args.workload} and --graph {args.graph} both say what is simulated; give one of them")
    if args.ranks is None:
        raise UserError("--graph needs -k, over how many ranks")
    return made(args, args.ranks)


def without_machine(workload: str) -> str:
    """What to say where --machine is missing; a run with adaptive widths has kept one."""
    path = Path(workload)
    kept = (path if path.is_dir() else path.parent) / "machine.toml"
    if kept.is_file():
        return f"--machine is missing; this run measured its own: --machine {kept}"
    return "--machine is missing: give a machine.toml (`bitring calibrate` writes one), or a preset such as emulated-4"


def refuse_graph_options(args: argparse.Namespace) -> None:
    """What says nothing where a run was recorded."""
    for option in ("ranks", "rates_here", "flop_s", "memory_byte_s"):
        value = getattr(args, option)
        if value is not None and value is not False:
            name = "-k" if option == "ranks" else "--" + option.replace("_", "-")
            raise UserError(f"{name} goes with --graph; leave it out where a run was recorded")
    if dotted := [word for word in args.set if "." in word.partition("=")[0]]:
        raise UserError(f"--set {dotted[0]} is a key of a configuration, which goes with --graph")


def read_both(path: Path, name: str) -> tuple[Workload, Machine]:
    """A recorded workload, and a machine of as many ranks."""
    path = path / "workload.npz" if path.is_dir() else path
    try:
        recorded = workloads.load(path)
    except WorkloadError as error:
        raise UserError(f"{error}; `bitring train` leaves a workload in its run folder") from None
    return recorded, found_machine(name, recorded.ranks, str(path))


def found_machine(name: str, ranks: int, what: str) -> Machine:
    """A machine of this many devices."""
    try:
        found = machines.find(name)
    except MachineError as error:
        raise UserError(f"{error}; `bitring calibrate` writes a machine.toml") from None
    if found.ranks != ranks:
        raise UserError(
            f"{what} is of {ranks} ranks, and machine {found.name} has {found.ranks} devices; "
            "take a machine of as many, or calibrate one"
        )
    return found


def made(args: argparse.Namespace, ranks: int) -> tuple[Workload, Machine]:
    """A workload from the partition of a graph, cached as a run's is, and the compute rates of a machine."""
    if ranks < 1:
        raise UserError(f"-k is {ranks}; give a number of ranks >= 1")
    if _is_workload(args.graph):
        raise UserError(f"{args.graph} is a workload, not a graph: leave out --graph, and give --machine with it")
    config = configuration(args.graph, [word for word in args.set if "." in word.partition("=")[0]])
    methods.lookup(config.method)
    planning.parse_steps(config.method.plan)
    found = cluster(ranks) if args.machine is None else found_machine(args.machine, ranks, f"-k {ranks}")
    rates, notes = _rates(args, found)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    partition = cache.ensure(config, ranks, log.info)
    try:
        load = counts.workload_of(config, partition, rates, costs_of(found))
    except MadeError as error:
        raise UserError(str(error)) from None
    model = config.model
    notes = (f"{model.kind}, {model.layers} layers x {model.hidden}, plan {config.method.plan}", *notes)
    return dataclasses.replace(load, notes=(*load.notes, *notes)), found


def _is_workload(name: str) -> bool:
    path = Path(name)
    if (path / "workload.npz").is_file():
        return True
    if not path.is_file():
        return False
    try:
        workloads.load(path)
    except WorkloadError:
        return False
    return True


def cluster(ranks: int) -> Machine:
    """Where no machine is named: hosts of one device at 10 Gbit/s and 20 us, behind one switch."""
    host = Host(name="h", count=ranks, nic_bandwidth_bit_s=1e10, nic_latency_s=5e-6)
    links = tuple(Link(ends=(name, "switch"), bandwidth_bit_s=1e10, latency_s=5e-6) for name in host.names)
    return Machine(name=f"{ranks} hosts, 10 Gbit/s", hosts=(host,), switches=("switch",), links=links)


def _rates(args: argparse.Namespace, found: Machine) -> tuple[Rates, tuple[str, ...]]:
    """Compute rates by rank: as given, as measured here, the machine's, or assumed; and a note on those."""
    known = np.array(found.compute_rates()).T
    notes: list[str] = []
    if args.rates_here:
        here = measured_rates()
        known[:] = np.array(here)[:, None] / found.ranks
        notes.append(f"rates measured here, a {found.ranks}-th of {here[0]:.3g} flop/s and {here[1]:.3g} B/s")
    unknown = known == 0
    for row, value in enumerate((args.flop_s, args.memory_byte_s)):
        if value is not None:
            known[row], unknown[row] = value, False
    if unknown.any():
        assumed = np.array([[ASSUMED_FLOP_S], [ASSUMED_MEMORY_BYTE_S]])
        known = np.where(unknown, assumed, known)
        notes.append(
            f"compute rates assumed, {ASSUMED_FLOP_S:.0e} flop/s and {ASSUMED_MEMORY_BYTE_S:.0e} B/s of memory: the "
            "machine names none; --flop-s, --memory-byte-s or --rates-here give better ones"
        )
    try:
        return Rates(flop_s=known[0], memory_byte_s=known[1]), tuple(notes)
    except MadeError as error:
        raise UserError(str(error)) from None


def measured_rates(repeats: int = 5) -> tuple[float, float]:
    """(flop/s, bytes/s of memory) of this machine in numpy, float32: the best of repeats."""
    square, column = np.ones((768, 768), np.float32), np.ones(1 << 25, np.float32)
    other = np.empty_like(column)

    def best(work: object, *of: object) -> float:
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            work(*of)  # type: ignore[operator]
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    return (
        2 * 768**3 / best(np.matmul, square, square),
        2 * column.nbytes / best(np.copyto, other, column),
    )


# How messages go, and with what widths


def uses_links(found: Machine, links: str) -> bool:
    """Whether messages share the machine's links, rather than costing what their pairs cost."""
    return links == "fair" or (links == "auto" and found.fitted is None)


def costs_of(found: Machine) -> PairCosts:
    """What a message costs between every pair. UserError where two devices have no path."""
    try:
        return found.pair_costs()
    except MachineError as error:
        raise UserError(str(error)) from None


def wire_of(found: Machine, args: argparse.Namespace) -> Wire:
    """How messages go, as a command line says. UserError where two devices have no path."""
    try:
        network = found.topology() if uses_links(found, args.links) else found.pair_costs()
    except MachineError as error:
        remedy = "; or give --links apart: its costs were measured" if found.fitted is not None else ""
        raise UserError(f"{error}{remedy}") from None
    return Wire(network=network, semantics=args.semantics, links="shared" if args.links == "shared" else "apart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A choice in words: a method, its parameters, widths."""

    method: str | None = None
    words: tuple[str, ...] = ()
    bits: int | None = None
    policy: str | None = None
    lam: float = 0.5
    group_size: int = 100
    budget: Budget = "each"
    overlap: bool = True

    @staticmethod
    def of(args: argparse.Namespace) -> Wanted:
        others = getattr(args, "against", [])
        if args.policy is None and not any("policy=" in text for text in others):
            for option, value in (("--lam", args.lam), ("--group-size", args.group_size), ("--budget", args.budget)):
                if value is not None:
                    raise UserError(f"{option} {value} goes with a policy; give --policy adaptive, or leave it out")
        return Wanted(
            method=getattr(args, "method", None),
            words=tuple(word for word in args.set if "." not in word.partition("=")[0]),
            bits=args.bits,
            policy=args.policy,
            lam=0.5 if args.lam is None else args.lam,
            group_size=100 if args.group_size is None else args.group_size,
            budget=args.budget or "each",
            overlap=not args.no_overlap,
        )

    def other(self, text: str) -> Wanted:
        """The choice that METHOD[,KEY=VALUE ...] or KEY=VALUE[, ...] names; how groups are cut and overlap stay."""
        first, *rest = text.split(",")
        method, words = (None, [first, *rest]) if "=" in first else (first, rest)
        widths = {key: value for key, _, value in (word.partition("=") for word in words) if key in _WIDTHS}
        own = tuple(word for word in words if word.partition("=")[0] not in _WIDTHS)
        if method is None and not widths:
            raise UserError(f"--against {text!r} is no choice; give bits=8, policy=adaptive, or METHOD[,KEY=VALUE ...]")
        try:
            given = {key: _WIDTHS[key](value) for key, value in widths.items()}
        except ValueError:
            raise UserError(f"--against {text!r}: a width is a number, such as bits=8") from None
        if given.get("budget", "each") not in get_args(Budget):
            raise UserError(f"--against {text!r}: a budget is {' or '.join(get_args(Budget))}")
        if "policy" not in given and (extra := given.keys() & {"lam", "group_size", "budget"}):
            raise UserError(f"--against {text!r}: {min(extra)} goes with a policy, such as policy=adaptive,lam=0.3")
        if "bits" in given and given["bits"] not in workloads.WIDTHS[1:]:
            raise UserError(f"--against {text!r}: bits are one of {', '.join(map(str, workloads.WIDTHS[1:]))}")
        cleared = dataclasses.replace(self, method=method, words=own, bits=None, policy=None)
        return dataclasses.replace(cleared, **given)


_WIDTHS = {"bits": int, "policy": str, "lam": float, "group_size": int, "budget": str}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """A choice, ready to be simulated; ``workload`` is what it sends."""

    choice: Choice
    workload: Workload
    parameters: dict[str, float | str]
    assigned: Assigned | None


def chosen(recorded: Workload, costs: PairCosts, wire: Wire, wanted: Wanted) -> Chosen:
    """A workload under a choice. UserError."""
    name = wanted.method
    widths = wanted.bits is not None or wanted.policy is not None
    if widths and name not in (None, "quantised"):
        raise UserError(f"--bits and --policy go with method quantised, not {name}; leave them out")
    if name == "quantised" and not widths and not any((e.bits <= 8).any() for e in recorded.exchanges):
        raise UserError("method quantised needs widths: give --bits or --policy")
    if name is None and widths:
        name = "quantised"
    if not wanted.overlap and name in ("pipelined", "broadcast", "skip-broadcast"):
        raise UserError(f"--no-overlap says nothing of method {name}; leave it out")
    workload, assigned = with_widths(recorded, costs, wire, wanted)
    try:
        values = parameters(name, wanted.words) if name is not None else _none(wanted.words)
        workload, method = build(name, workload, values, overlap=wanted.overlap)
    except (MethodError, CostError) as error:
        raise UserError(str(error)) from None
    shown = told(name, values, wanted.words) if name is not None else {}
    choice = Choice(name=name or AS_RECORDED, method=method, load=Load.of(workload), wire=wire)
    return Chosen(choice=choice, workload=workload, parameters=shown, assigned=assigned)


def _none(words: Sequence[str]) -> dict[str, float | str]:
    if words:
        raise UserError(f"--set {words[0]} is a parameter of a method; name it with --method")
    return {}


def with_widths(recorded: Workload, costs: PairCosts, wire: Wire, wanted: Wanted) -> tuple[Workload, Assigned | None]:
    """As recorded, or at --bits, or by --policy."""
    if wanted.policy is None:
        return (recorded if wanted.bits is None else with_bits(recorded, wanted.bits)), None
    if wanted.bits is not None:
        raise UserError(f"--bits {wanted.bits} and --policy {wanted.policy} both choose widths; give one of them")
    try:
        found = assign_workload(
            recorded, costs, wanted.policy, lam=wanted.lam, group_size=wanted.group_size, semantics=wire.semantics,
            budget=wanted.budget,
        )  # fmt: skip
    except (ProblemError, SolverError) as error:
        raise UserError(str(error)) from None
    return found.workload, found
