"""`bitring simulate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from simulator import workload as workloads
from simulator.answer import Against, Answer
from simulator.cost import CostError, PairCosts
from simulator.critical import Piece, critical_path
from simulator.epoch import Leg, limit_s, variance_bound
from simulator.machine import Machine
from simulator.made import MadeError, compute_ratios
from simulator.methods import Epochs, MethodError
from simulator.replicas import Distribution, Disturbed, disturbed, seconds
from simulator.stragglers import StragglerError, Stragglers, paired_difference, parse
from simulator.topology import Topology
from simulator.tracks import timeline
from simulator.wire import Wire
from simulator.workload import Workload, WorkloadError
from toolkit import report
from toolkit.commands import simulated
from toolkit.commands.offline import AS_RECORDED, Chosen, Wanted, chosen, costs_of, source, wire_of
from toolkit.errors import UserError

PATH_RANKS = 64  # a path is searched among all messages, of which there are N (N - 1) an exchange
WIDTHS_METHODS = (AS_RECORDED, "vanilla", "quantised")
NO_PATH = {
    "pipelined": "its epochs overlap, so none has an end of its own",
    "broadcast": "whole blocks go down trees, and the path knows messages of the ring alone",
}
NO_PATH["skip-broadcast"] = NO_PATH["broadcast"]


def run(args: argparse.Namespace) -> int:
    recorded, found = source(args)
    if args.save:
        _save(recorded, args)
    costs, wire = costs_of(found), wire_of(found, args)
    wanted = Wanted.of(args)
    one = chosen(recorded, costs, wire, wanted)
    answer = _answer(recorded, found, costs, one, wanted, args)
    if args.json:
        print(json.dumps(answer.plain(), indent=1))
        return 0
    if one.assigned is not None:
        print(_widths_text(one, wanted) + "\n")
    print(simulated.describe(answer))
    beyond = [text for exchange in one.workload.exchanges for text in costs.warnings(exchange.channel_bytes())]
    for text in dict.fromkeys((*beyond, *answer.notes)):
        print(f"\nmind: {text}")
    return 0


def _answer(
    recorded: Workload, found: Machine, costs: PairCosts, one: Chosen, wanted: Wanted, args: argparse.Namespace
) -> Answer:
    choice = one.choice
    others = [(text, chosen(recorded, costs, choice.wire, wanted.other(text))) for text in args.against]
    try:
        steady = choice.method.steady(choice.load, choice.wire)
        told, against = _under_stragglers(one, others, args)
    except (StragglerError, MethodError, CostError) as error:
        raise UserError(str(error)) from None
    return Answer(
        graph=recorded.graph,
        ranks=recorded.ranks,
        transport=recorded.transport,
        machine=found.name,
        method="as configured" if args.graph and choice.name == AS_RECORDED else choice.name,
        parameters=one.parameters,
        epoch=steady.told(),
        channel_bytes=tuple(_channels(step.leg) for step in steady.steps),
        beside_s=steady.beside_s,
        limit_s=limit_s(one.workload, costs) if choice.name in WIDTHS_METHODS else None,
        variance_bound=variance_bound(one.workload),
        path=None if (no_path := _no_path(choice.name, choice.load.ranks)) else _path(one, steady, wanted.overlap),
        no_path=no_path,
        solve_s=one.assigned.solve_s if one.assigned is not None else None,
        stragglers=tuple(args.straggler),
        disturbed=told,
        against=against,
        compute_ratios=_checked(recorded, args) if args.check else None,
        notes=recorded.notes if args.graph else (),
    )


def _channels(leg: Leg) -> tuple[tuple[float, ...], ...]:
    """[sender][receiver]; of several epochs, their mean."""
    mean = leg.num_bytes.reshape(-1, *leg.num_bytes.shape[-2:]).mean(axis=0)
    return tuple(tuple(row) for row in mean.tolist())


def _no_path(method: str, ranks: int) -> str:
    """Why no critical path is told; empty: it is."""
    if method in NO_PATH:
        return f"{method}: {NO_PATH[method]}"
    return f"{ranks} ranks: it is searched among all messages, up to {PATH_RANKS} ranks" if ranks > PATH_RANKS else ""


def _path(one: Chosen, steady: Epochs, overlap: bool) -> tuple[Piece, ...]:
    choice = one.choice
    wire: Wire = choice.wire
    drawn = timeline(one.workload, wire.network, semantics=wire.semantics, links=wire.links, overlap=overlap)
    path = critical_path(*drawn)
    if not steady.beside_s:
        return path
    end_s = path[-1].end_s if path else 0.0
    stage = "weights put together" if choice.name == "gist" else "assignment"
    return (*path, Piece(rank=0, stage=stage, begin_s=end_s, end_s=end_s + steady.beside_s))


def _under_stragglers(
    one: Chosen, others: list[tuple[str, Chosen]], args: argparse.Namespace
) -> tuple[Disturbed | None, tuple[Against, ...]]:
    if not args.straggler and not others:
        return None, ()
    if args.epochs < 2:
        raise UserError(f"--epochs is {args.epochs}; a distribution needs 2 at least")
    members = tuple(parse(text, stream=number) for number, text in enumerate(args.straggler))
    if isinstance(one.choice.wire.network, Topology) and any(member.what == "link" for member in members):
        raise UserError("a slow link needs links of pairs, and here messages share links; give --links apart or shared")
    slow = Stragglers(seed=args.seed, members=members)
    own = seconds(one.choice, slow, args.epochs) if others else np.empty(0)
    found = []
    for text, other in others:
        its = seconds(other.choice, slow, args.epochs)
        found.append(Against(choice=text, epochs=Distribution.of(its), difference=paired_difference(own, its)))
    return disturbed(one.choice, slow, args.epochs) if members else None, tuple(found)


def _checked(made: Workload, args: argparse.Namespace) -> dict[str, float]:
    if args.graph is None:
        raise UserError("--check compares an estimate with a run; it goes with --graph")
    path = Path(args.check)
    try:
        return compute_ratios(made, workloads.load(path / "workload.npz" if path.is_dir() else path))
    except (MadeError, WorkloadError) as error:
        raise UserError(str(error)) from None


def _save(made: Workload, args: argparse.Namespace) -> None:
    if args.graph is None:
        raise UserError("--save keeps a workload that was made; it goes with --graph")
    try:
        workloads.save(made, Path(args.save))
    except OSError as error:
        raise UserError(f"can't write {args.save}: {error.strerror}; name another file with --save") from None


def _widths_text(one: Chosen, wanted: Wanted) -> str:
    assert one.assigned is not None
    bits = np.concatenate([e.bits for e in one.workload.exchanges]) if one.workload.exchanges else np.empty(0, np.uint8)
    widths, counts = np.unique(bits, return_counts=True)
    spread = ", ".join(f"{count:,} of {width} bits" for width, count in zip(widths, counts, strict=True))
    solved = f"solved in {report.seconds(one.assigned.solve_s)} beside training (not in the epoch)"
    solved += f", gap {one.assigned.gap:.1e}"
    return f"{wanted.policy}, lambda {wanted.lam:g}, groups of {wanted.group_size}: {spread}; {solved}"
