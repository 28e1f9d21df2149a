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
    epochs = [
        (_epoch_s(recorded, wire), _epoch_s(renumbered(recorded, one.rank_of), wire))
        for (recorded, _), one in zip(read, placed, strict=True)
    ]
    taken, moved = never_slower(best, epochs)
    chosen = renumbered(read[taken][0], placed[taken].rank_of) if moved else read[taken][0]
    if args.out:
        try:
            workloads.save(chosen, Path(args.out))
        except OSError as error:
            raise UserError(f"can't write {args.out}: {error.strerror}; name another file with --out") from None
    if args.json:
        told = [
            _plain(path, one, both)
            | {"chosen": index == taken, "renumbered": index == taken and moved and one.saved_s > 0}
            for index, (path, one, both) in enumerate(zip(args.workloads, placed, epochs, strict=True))
        ]
        print(json.dumps(told, indent=1))
        return 0
    print(_described(args, machine, placed, best, epochs))
    return 0


def never_slower(best: int, epochs: Sequence[tuple[float, float]]) -> tuple[int, bool]:
    """Which workload to take, and whether with its new numbers: whatever keeps the whole epoch shortest.

    ``epochs``: seconds before and after. Shorter rings may make a longer epoch, where they hid before.
    """
    before, after = epochs[best]
    options = [(after, best, True), (before, best, False), (epochs[0][0], 0, False)]
    _, taken, moved = min(options, key=lambda option: option[0])  # of equal ones the first
    return taken, moved


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
    args: argparse.Namespace,
    machine: Machine,
    placed: Sequence[Placement],
    best: int,
    epochs: Sequence[tuple[float, float]],
) -> str:
    taken, moved = never_slower(best, epochs)
    rows = [
        [
            "*" if index == taken and len(placed) > 1 else "",
            path,
            report.seconds(one.identity_s),
            report.seconds(one.seconds),
            f"{report.seconds(one.saved_s)} ({report.percent(one.saved_s / (one.identity_s or 1.0))})",
            f"{one.evaluations:,}",
            one.how,
        ]
        for index, (path, one) in enumerate(zip(args.workloads, placed, strict=True))
    ]
    order = placed[taken].rank_of.tolist() if moved else []
    moves = ", ".join(f"{part} -> {rank}" for part, rank in enumerate(order) if part != rank)
    pairs = [("numbering", f"part -> rank: {moves}; the others stay" if moves else "the numbers as they are")]
    if len(placed) > 1:
        pairs.append(("partition", f"{args.workloads[taken]}, of {len(placed)}"))
    before, after = epochs[0][0], epochs[taken][1 if moved else 0]
    pairs.append(
        (
            "epoch",
            f"{report.seconds(before)} as it is, {report.seconds(after)} with this numbering"
            + (" and partition" if taken else "")
            + ", compute as recorded",
        )
    )
    if not moved and placed[best].saved_s > 0:
        what = report.seconds(epochs[best][1])
        pairs.append(("kept", f"the best rings' numbers would make an epoch of {what}: the numbers stay as they are"))
    if args.out:
        pairs.append(("written", args.out))
    heading = f"Messages of an epoch on machine {machine.name}, {args.semantics}, all ranks starting at once:"
    return f"{heading}\n{report.table(rows, HEADER)}\n\n{report.facts(pairs)}"


def _plain(path: str, placed: Placement, epochs: tuple[float, float]) -> dict[str, Any]:
    return {
        "workload": path,
        "epoch_before_s": epochs[0],
        "epoch_after_s": epochs[1],
        "identity_s": placed.identity_s,
        "best_s": placed.seconds,
        "saved_s": placed.saved_s,
        "rank_of": placed.rank_of.tolist(),
        "evaluations": placed.evaluations,
        "how": placed.how,
    }
