"""`bitring simulate`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

from simulator import machine, workload
from simulator.assignment import assign_workload
from simulator.cost import PairCosts
from simulator.epoch import EpochTime, limit_s, simulate, variance_bound, with_bits
from simulator.machine import Machine, MachineError
from simulator.policy import ProblemError, SolverError
from simulator.workload import Workload, WorkloadError
from toolkit import report
from toolkit.errors import UserError

HEADER = ["layer", "direction", "bytes", "in flight", "waited for", "hidden", "coding", "products"]


def run(args: argparse.Namespace) -> int:
    recorded, found = read_both(Path(args.workload), args.machine)
    costs = found.pair_costs()
    chosen = chosen_widths(recorded, costs, args)
    fair = uses_links(found, args.links)
    time = simulate(
        chosen,
        found.topology() if fair else costs,
        semantics=args.semantics,
        links="shared" if args.links == "shared" else "apart",
        overlap=not args.no_overlap,
    )
    best_s = limit_s(chosen, costs)
    if args.json:
        plain = dataclasses.asdict(time) | {"limit_s": best_s, "variance_bound": variance_bound(chosen)}
        print(json.dumps(plain, indent=1))
        return 0
    print(describe(time, chosen, found, best_s))
    beyond = [text for exchange in chosen.exchanges for text in costs.warnings(exchange.channel_bytes())]
    for text in dict.fromkeys(beyond):
        print(f"\nmind: {text}")
    return 0


def uses_links(found: Machine, links: str) -> bool:
    """Whether messages share the machine's links, rather than costing what their pairs cost."""
    return links == "fair" or (links == "auto" and found.fitted is None)


def chosen_widths(recorded: Workload, costs: PairCosts, args: argparse.Namespace) -> Workload:
    """As recorded, or at --bits, or by --policy."""
    if args.policy is None:
        return recorded if args.bits is None else with_bits(recorded, args.bits)
    if args.bits is not None:
        raise UserError(f"--bits {args.bits} and --policy {args.policy} both choose widths; give one of them")
    try:
        assigned = assign_workload(recorded, costs, args.policy, lam=args.lam, group_size=args.group_size)
    except (ProblemError, SolverError) as error:
        raise UserError(str(error)) from None
    widths, counts = np.unique(np.concatenate([e.bits for e in assigned.workload.exchanges]), return_counts=True)
    if not args.json:
        spread = ", ".join(f"{count:,} of {width} bits" for width, count in zip(widths, counts, strict=True))
        print(f"{args.policy}, lambda {args.lam:g}, groups of {args.group_size}: {spread}; ", end="")
        print(f"solved in {report.seconds(assigned.solve_s)}, gap {assigned.gap:.1e}\n")
    return assigned.workload


def read_both(path: Path, name: str) -> tuple[Workload, Machine]:
    path = path / "workload.npz" if path.is_dir() else path
    try:
        recorded = workload.load(path)
        found = machine.find(name)
    except WorkloadError as error:
        raise UserError(f"{error}; `bitring train` leaves a workload in its run folder") from None
    except MachineError as error:
        raise UserError(f"{error}; `bitring calibrate` writes a machine.toml") from None
    if found.ranks != recorded.ranks:
        raise UserError(
            f"{path} is of {recorded.ranks} ranks, and machine {found.name} has {found.ranks} devices; "
            "take a machine of as many, or calibrate one"
        )
    return recorded, found


def describe(time: EpochTime, chosen: Workload, found: Machine, best_s: float) -> str:
    """The epoch, stage by stage."""
    rows = [
        [
            str(e.layer),
            e.direction,
            report.num_bytes(e.num_bytes),
            *(report.seconds(s) for s in (e.flight_s, e.waiting_s, e.hidden_s, e.coding_s, e.product_s)),
        ]
        for e in time.exchanges
    ]
    pairs = [
        ("graph", f"{chosen.graph}, {chosen.ranks} ranks, {chosen.transport}, on machine {found.name}"),
        ("epoch", report.seconds(time.epoch_s)),
        ("messages", f"{report.seconds(time.waiting_s)} waited for, {report.seconds(time.hidden_s)} hidden"),
        ("rows sent", f"{report.num_bytes(time.num_bytes)} by all ranks"),
        ("dense", f"{report.seconds(time.dense_s)}, held products {report.seconds(time.held_s)}"),
        ("gradients", f"{report.seconds(time.weight_gradient_s)}, as recorded"),
        ("variance", f"{variance_bound(chosen):.3g} (bound on what rounding adds to the aggregates)"),
        ("limit", f"{report.seconds(best_s)} at 2 bits: the longer of compute alone and messages alone, and gradients"),
    ]
    return report.facts(pairs) + "\n\n" + report.table(rows, HEADER)
