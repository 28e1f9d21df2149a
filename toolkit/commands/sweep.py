"""`bitring sweep`."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.choice import METHODS, build, parameters
from simulator.cost import CostError, PairCosts
from simulator.epoch import Load, simulate, variance_bound, with_bits
from simulator.machine import Machine
from simulator.methods import MethodError
from simulator.picture import fronts
from simulator.policy import ProblemError
from simulator.sweep import Lists, SweepPoint, adaptive, bits_of, lists, with_front
from simulator.timeline import TimelineError
from simulator.wire import Wire
from simulator.workload import Workload
from toolkit import report
from toolkit.commands.offline import costs_of, made, read_both, refuse_graph_options
from toolkit.errors import UserError

FIXED = (1, 2, 4, 8, 16, 32)
BY_LAMBDA = {"adaptive": False, "posted": True}  # method: whether all messages of an exchange are one problem
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One workload on one machine, and what its channels may send by method and group size."""

    name: str
    workload: Workload
    machine: Machine
    costs: PairCosts
    lists: dict[str, list[Lists]]


def run(args: argparse.Namespace) -> int:
    if args.lambdas < 2 or min(args.bandwidths) <= 0:
        raise UserError("give --lambdas >= 2 and --bandwidths above 0")
    for word in _words(args):
        known = {key for method in args.methods for key in METHODS.get(method, {})}
        if word.partition("=")[0] not in known:
            raise UserError(f"--set {word} is a parameter of none of {', '.join(args.methods)}; leave it out")
    if args.out.endswith(".parquet"):
        _parquet()  # before minutes of work, not after
    sources = _sources(args)
    rows: list[Row] = []
    try:
        cases = [_case(*one, args) for one in sources]
        total = len(cases) * len(args.bandwidths) * len(args.semantics)
        for found in _shown(_grid(cases, args), total):
            rows += found
    except (ProblemError, MethodError, CostError) as error:
        raise UserError(str(error)) from None
    try:
        write(Path(args.out), rows)
        if args.picture:
            fronts(Path(args.picture), rows, ", ".join(dict.fromkeys(case.machine.name for case in cases)))
    except (OSError, ValueError) as error:  # an unknown kind of picture is a ValueError of matplotlib
        told = f"can't write the sweep: {error}; name other files with --out and --picture"
        raise UserError(str(error) if isinstance(error, TimelineError) else told) from None
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    best = [_fastest(here) for here in _networks(rows)]
    print(f"{len(rows):,} epochs simulated; {args.out}" + (f", {args.picture}" if args.picture else ""))
    print(report.table(best, ["workload", "ranks", "bandwidth x", "fastest", "epoch", "float32", "gain", "variance"]))
    return 0


def _words(args: argparse.Namespace) -> list[str]:
    """The parameters of methods among --set."""
    return [word for word in args.set if "." not in word.partition("=")[0]]


def _sources(args: argparse.Namespace) -> list[tuple[str, Workload, Machine]]:
    if args.graph is None:
        refuse_graph_options(args)
        if not args.workload or args.machine is None:
            raise UserError("give WORKLOAD and --machine, or --graph and -k for workloads without a run")
        return [(path, *read_both(Path(path), args.machine)) for path in args.workload]
    if args.workload or not args.ranks:
        raise UserError("--graph goes with -k, over how many ranks, and without WORKLOAD")
    return [(args.graph, *made(args, ranks)) for ranks in args.ranks]


def _case(name: str, workload: Workload, machine: Machine, args: argparse.Namespace) -> Case:
    wanted = [method for method in BY_LAMBDA if method in args.methods]
    return Case(
        name=name,
        workload=workload,
        machine=machine,
        costs=costs_of(machine),
        lists={
            method: [lists(workload, size, at_once=BY_LAMBDA[method]) for size in args.group_sizes] for method in wanted
        },
    )


def _grid(cases: Sequence[Case], args: argparse.Namespace) -> Iterator[list[Row]]:
    """One list of points for every workload, network and ring."""
    lambdas = np.linspace(0, 1, args.lambdas).tolist()
    words = _words(args)
    for case, factor, semantics in itertools.product(cases, args.bandwidths, args.semantics):
        wire = Wire(network=case.costs.at_bandwidth(factor), semantics=semantics, links=args.links)
        points: list[SweepPoint] = []
        for method, found in case.lists.items():
            chosen = [p for one in found for p in adaptive(case.workload, one, wire, lambdas, method)]
            points += with_front(chosen)
        for method in args.methods:
            points += _fixed(case.workload, wire) if method == "fixed" else []
            points += [_other(case.workload, wire, method, words)] if method in METHODS else []
        about = {"workload": case.name, "graph": case.workload.graph, "ranks": case.workload.ranks}
        about |= {"machine": case.machine.name, "bandwidth_factor": factor, "semantics": semantics, "links": args.links}
        yield [about | _plain(point) for point in points]


def _fixed(workload: Workload, wire: Wire) -> list[SweepPoint]:
    found = []
    for bits in FIXED:
        sent = with_bits(workload, bits)
        epoch = simulate(sent, wire.network, semantics=wire.semantics, links=wire.links)
        found.append(
            SweepPoint(
                method=f"fixed {bits}",
                lam=None,
                group_size=None,
                mean_bits=bits,
                epoch_s=epoch.epoch_s,
                waiting_s=epoch.waiting_s,
                num_bytes=epoch.num_bytes,
                variance_bound=variance_bound(sent),
            )
        )
    return found


def _other(workload: Workload, wire: Wire, name: str, words: Sequence[str]) -> SweepPoint:
    """A method at its defaults, or at what --set gives it."""
    own = [word for word in words if word.partition("=")[0] in METHODS[name]]
    sent, method = build(name, workload, parameters(name, own))
    epoch = method.steady(Load.of(sent), wire).told()
    return SweepPoint(
        method=name,
        lam=None,
        group_size=None,
        mean_bits=bits_of(sent.exchanges),
        epoch_s=epoch.epoch_s,
        waiting_s=epoch.waiting_s,
        num_bytes=epoch.num_bytes,
        variance_bound=variance_bound(sent),
    )


def _plain(point: SweepPoint) -> Row:
    return {
        "method": point.method,
        "lambda": point.lam,
        "group_size": point.group_size,
        "mean_bits": point.mean_bits,
        "epoch_s": point.epoch_s,
        "waiting_s": point.waiting_s,
        "num_bytes": point.num_bytes,
        "variance_bound": point.variance_bound,
        "on_front": point.on_front,
    }


def write(path: Path, rows: Sequence[Row]) -> None:
    """One JSON object a line; by the suffix .parquet, a Parquet table. Whole or not at all. UserError, OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if path.suffix == ".parquet":
            arrow, parquet = _parquet()
            parquet.write_table(arrow.Table.from_pylist(list(rows)), temporary)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _parquet() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install pyarrow, or name a .jsonl file with --out") from None


def _shown(grid: Iterator[list[Row]], total: int) -> Iterator[list[Row]]:
    """With a progress bar where a person watches."""
    if not sys.stderr.isatty():
        return grid
    from tqdm import tqdm

    bar: Iterator[list[Row]] = iter(tqdm(grid, total=total, unit="network", leave=False))
    return bar


def _networks(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each workload and bandwidth."""
    found: dict[tuple[str, int, float], list[Row]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["ranks"], row["bandwidth_factor"]), []).append(row)
    return list(found.values())


def _fastest(here: Sequence[Row]) -> list[str]:
    best = min(here, key=lambda row: (row["epoch_s"], row["variance_bound"]))
    plain = min((row["epoch_s"] for row in here if row["method"] == "fixed 32"), default=None)
    name = best["method"]
    if best["lambda"] is not None:
        name += f", lambda {best['lambda']:.2f}, group {best['group_size']}"
    return [
        best["workload"],
        str(best["ranks"]),
        f"{best['bandwidth_factor']:g}",
        f"{name} ({best['semantics']})",
        report.seconds(best["epoch_s"]),
        "-" if plain is None else report.seconds(plain),
        "-" if plain is None else report.ratio(plain, best["epoch_s"]),
        f"{best['variance_bound']:.3g}",
    ]
