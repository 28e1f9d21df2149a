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
from simulator.made import at_costs
from simulator.methods import MethodError
from simulator.picture import fronts
from simulator.policy import ProblemError
from simulator.policy.front import knee_index
from simulator.sweep import Lists, SweepPoint, adaptive, bits_of, lists, with_front
from simulator.timeline import TimelineError
from simulator.tuning import TRAINED, WORTH
from simulator.wire import Wire
from simulator.workload import Workload
from toolkit import report
from toolkit.commands.offline import costs_of, made, read_both, refuse_graph_options
from toolkit.errors import UserError

FIXED = (1, 2, 4, 8, 16, 32)
WIDTHS = ("adaptive", "posted", "fixed")  # methods that are told apart by their widths alone
LINKS = {"apart": "every pair has one of its own", "shared": "a rank's messages go one after another"}
HEADER = ["workload", "ranks", "bandwidth x", "ring", "knee of the front", "epoch", "variance", "float32", "gain"]
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
    print(_described(rows, cases, args))
    return 0


def _described(rows: Sequence[Row], cases: Sequence[Case], args: argparse.Namespace) -> str:
    """The choice of every network beside float32, and what was taken as given."""
    best = [_choice(here) for here in _networks(rows)]
    shared = any(case.machine.fitted is None for case in cases)
    notes = [
        f"links {args.links}: {LINKS[args.links]}"
        + ("; simulate's auto lets messages share this machine's links (fair)" if shared else ""),
        "gradients: their sum is scaled as a ring allreduce of their bytes over the slowest pair is",
    ]
    if left := [method for method in args.methods if method in METHODS]:
        notes.append(
            f"choice: of {', '.join(WIDTHS)}; {', '.join(left)}: in the file, their variance is rounding's alone"
        )
    return (
        f"{len(rows):,} epochs simulated; {args.out}"
        + (f", {args.picture}" if args.picture else "")
        + f"\n{report.table(best, HEADER)}\n\n"
        + "\n".join(notes)
    )


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
        costs = case.costs.at_bandwidth(factor)
        wire = Wire(network=costs, semantics=semantics, links=args.links)
        workload = at_costs(case.workload, case.costs, costs)
        points: list[SweepPoint] = []
        for method, found in case.lists.items():
            chosen = [p for one in found for p in adaptive(workload, one, wire, lambdas, method)]
            points += with_front(chosen)
        for method in args.methods:
            points += _fixed(workload, wire) if method == "fixed" else []
            points += [_other(workload, wire, method, words)] if method in METHODS else []
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
    """The rows of each workload, bandwidth and ring."""
    found: dict[tuple[str, int, float, str], list[Row]] = {}
    for row in rows:
        key = (row["workload"], row["ranks"], row["bandwidth_factor"], row["semantics"])
        found.setdefault(key, []).append(row)
    return list(found.values())


def _choice(here: Sequence[Row]) -> list[str]:
    """The knee of adaptive and fixed widths together; float32 where no width saves enough."""
    plain = next((row for row in here if row["method"] == "fixed 32"), None)
    best = _knee([row for row in here if _trained(row)], plain)
    first = here[0]
    where = [first["workload"], str(first["ranks"]), f"{first['bandwidth_factor']:g}", first["semantics"]]
    float32 = "-" if plain is None else report.seconds(plain["epoch_s"])
    if best is None:  # methods without widths to choose
        return [*where, "-", "-", "-", float32, "-"]
    name = best["method"]
    if best["lambda"] is not None:
        name += f", lambda {best['lambda']:.2f}, group {best['group_size']}"
    elif best is plain:
        name = "float32: nothing to gain"
    gain = "-" if plain is None or best is plain else report.ratio(plain["epoch_s"], best["epoch_s"])
    return [*where, name, report.seconds(best["epoch_s"]), f"{best['variance_bound']:.3g}", float32, gain]


def _trained(row: Row) -> bool:
    """Whether `tune` could propose it."""
    return row["lambda"] is not None or row["method"] in [f"fixed {bits}" for bits in TRAINED]


def _knee(rows: Sequence[Row], plain: Row | None) -> Row | None:
    """As tune's rule: among what saves at least a share WORTH of float32's epoch; float32 where nothing does."""
    worth = [r for r in rows if plain is None or r["epoch_s"] <= (1 - WORTH) * plain["epoch_s"]]
    # of equal ones fixed widths come first, which nobody has to solve, then the largest groups
    order = sorted(worth, key=lambda r: (r["epoch_s"], r["variance_bound"], -(r["group_size"] or np.inf)))
    front: list[Row] = []
    for row in order:
        if not front or row["variance_bound"] < front[-1]["variance_bound"]:
            front.append(row)
    if not front:
        return plain
    return front[knee_index(*(np.array([row[of] for row in front]) for of in ("epoch_s", "variance_bound")))]
