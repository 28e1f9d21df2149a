"""`bitring simulate`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from simulator import costs_file, workload
from simulator.cost import CostError
from simulator.epoch import EpochTime, limit_s, simulate, variance_bound, with_bits
from simulator.workload import WorkloadError
from toolkit import report
from toolkit.errors import UserError

HEADER = ["layer", "direction", "bytes", "in flight", "waited for", "hidden", "coding", "products"]


def run(args: argparse.Namespace) -> int:
    path = Path(args.workload)
    path = path / "workload.npz" if path.is_dir() else path
    try:
        recorded = workload.load(path)
        measured = costs_file.load(Path(args.costs))
    except (WorkloadError, CostError) as error:
        raise UserError(f"{error}; `bitring train` leaves a workload, `bitring calibrate` costs") from None
    if measured.costs.ranks != recorded.ranks:
        raise UserError(
            f"{path} is of {recorded.ranks} ranks and {args.costs} of {measured.costs.ranks}; calibrate with as many"
        )
    chosen = recorded if args.bits is None else with_bits(recorded, args.bits)
    time = simulate(chosen, measured.costs, semantics=args.semantics, links=args.links, overlap=not args.no_overlap)
    best_s = limit_s(chosen, measured.costs)
    if args.json:
        plain = dataclasses.asdict(time) | {"limit_s": best_s, "variance_bound": variance_bound(chosen)}
        print(json.dumps(plain, indent=1))
        return 0
    print(describe(time, chosen, best_s))
    beyond = [text for e in chosen.exchanges for text in measured.costs.warnings(e.channel_bytes())]
    print("".join(f"\nmind: {text}" for text in dict.fromkeys(beyond)), end="")
    return 0


def describe(time: EpochTime, chosen: workload.Workload, best_s: float) -> str:
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
        ("graph", f"{chosen.graph}, {chosen.ranks} ranks, {chosen.transport}"),
        ("epoch", report.seconds(time.epoch_s)),
        ("messages", f"{report.seconds(time.waiting_s)} waited for, {report.seconds(time.hidden_s)} hidden"),
        ("rows sent", f"{report.num_bytes(time.num_bytes)} by all ranks"),
        ("dense", f"{report.seconds(time.dense_s)}, held products {report.seconds(time.held_s)}"),
        ("gradients", report.seconds(time.weight_gradient_s)),
        ("variance", f"{variance_bound(chosen):.3g} (bound on what rounding adds to the aggregates)"),
        ("limit", f"{report.seconds(best_s)} at 2 bits: the longer of compute alone and messages alone, and gradients"),
    ]
    return report.facts(pairs) + "\n\n" + report.table(rows, HEADER)
