"""`bitring place`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator import workload as workloads
from simulator.cost import CostError
from simulator.epoch import simulate
from simulator.machine import Machine
from simulator.placement import Judge, Placement, judge_of, place_seeds, renumbered
from simulator.wire import Wire
from simulator.workload import Workload
from toolkit import report
from toolkit.commands.offline import read_both, wire_of
from toolkit.errors import UserError

HEADER = ["", "workload", "numbers as they are", "best numbers", "saved", "tried", "how"]


def run(args: argparse.Namespace) -> int:
    read = [read_both(Path(path), args.machine) for path in args.workloads]
    machine = read[0][1]
    wire = wire_of(machine, args)
    try:
        best, placed = _searched([judge_of(recorded, wire) for recorded, _ in read], args)
    except CostError as error:
        raise UserError(str(error)) from None
    chosen = renumbered(read[best][0], placed[best].rank_of)
    epochs = (_epoch_s(read[0][0], wire), _epoch_s(chosen, wire))
    if args.out:
        try:
            workloads.save(chosen, Path(args.out))
        except OSError as error:
            raise UserError(f"can't write {args.out}: {error.strerror}; name another file with --out") from None
    if args.json:
        print(json.dumps([_plain(path, one) for path, one in zip(args.workloads, placed, strict=True)], indent=1))
        return 0
    print(_described(args, machine, placed, best, epochs))
    return 0


def _searched(judges: list[Judge], args: argparse.Namespace) -> tuple[int, tuple[Placement, ...]]:
    """With a progress bar where a person watches."""
    choices = {"restarts": args.restarts, "key": args.seed, "evaluations": args.evaluations}
    if not sys.stderr.isatty():
        return place_seeds(judges, **choices)
    from tqdm import tqdm

    with tqdm(unit="numbering", leave=False) as bar:

        def say(count: int, most: int) -> None:
            bar.total, bar.n = most, count
            bar.refresh()

        return place_seeds(judges, **choices, say=say)


def _epoch_s(recorded: Workload, wire: Wire) -> float:
    return simulate(recorded, wire.network, semantics=wire.semantics, links=wire.links).epoch_s


def _described(
    args: argparse.Namespace, machine: Machine, placed: Sequence[Placement], best: int, epochs: tuple[float, float]
) -> str:
    rows = [
        [
            "*" if index == best and len(placed) > 1 else "",
            path,
            report.seconds(one.identity_s),
            report.seconds(one.seconds),
            f"{report.seconds(one.saved_s)} ({report.percent(one.saved_s / (one.identity_s or 1.0))})",
            f"{one.evaluations:,}",
            one.how,
        ]
        for index, (path, one) in enumerate(zip(args.workloads, placed, strict=True))
    ]
    moves = ", ".join(f"{part} -> {rank}" for part, rank in enumerate(placed[best].rank_of.tolist()) if part != rank)
    pairs = [("numbering", f"part -> rank: {moves}; the others stay" if moves else "the numbers as they are")]
    if len(placed) > 1:
        pairs.append(("partition", f"{args.workloads[best]}, the fastest of {len(placed)}"))
    pairs.append(
        (
            "epoch",
            f"{report.seconds(epochs[0])} as it is, {report.seconds(epochs[1])} with this numbering"
            + (" and partition" if best else "")
            + ", compute as recorded",
        )
    )
    if args.out:
        pairs.append(("renumbered", args.out))
    heading = f"Messages of an epoch on machine {machine.name}, {args.semantics}, all ranks starting at once:"
    return f"{heading}\n{report.table(rows, HEADER)}\n\n{report.facts(pairs)}"


def _plain(path: str, placed: Placement) -> dict[str, Any]:
    return {
        "workload": path,
        "identity_s": placed.identity_s,
        "best_s": placed.seconds,
        "saved_s": placed.saved_s,
        "rank_of": placed.rank_of.tolist(),
        "evaluations": placed.evaluations,
        "how": placed.how,
    }
