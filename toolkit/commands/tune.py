"""`bitring tune`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from simulator.assignment import Point, knee, tune
from simulator.epoch import simulate, variance_bound, with_bits
from simulator.policy import ProblemError, SolverError
from toolkit import report
from toolkit.commands.simulate import read_both, uses_links
from toolkit.errors import UserError

HEADER = ["", "lambda", "group", "epoch", "waited for", "rows sent", "mean bits", "variance", "solved in"]


def run(args: argparse.Namespace) -> int:
    if args.lambdas < 2:
        raise UserError(f"--lambdas is {args.lambdas}; give a number >= 2")
    recorded, found = read_both(Path(args.workload), args.machine)
    costs = found.pair_costs()
    network = found.topology() if uses_links(found, args.links) else costs
    links = "shared" if args.links == "shared" else "apart"
    try:
        points = tune(
            recorded,
            costs,
            network,
            lambdas=np.linspace(0, 1, args.lambdas).tolist(),
            group_sizes=args.group_sizes,
            semantics=args.semantics,
            links=links,  # type: ignore[arg-type]
        )
    except (ProblemError, SolverError) as error:
        raise UserError(str(error)) from None
    best = knee(points)
    if args.json:
        print(json.dumps([_plain(point, best) for point in points], indent=1))
        return 0
    print("The front over lambda and group size (* the knee), and fixed widths beside it:")
    rows = [_row(point, best) for point in sorted(points, key=lambda p: p.epoch.epoch_s) if point.on_front]
    for bits in (2, 4, 8, 32):
        fixed = with_bits(recorded, bits)
        epoch = simulate(fixed, network, semantics=args.semantics, links=links)  # type: ignore[arg-type]
        rows.append(
            [
                "",
                f"fixed {bits}",
                "-",
                report.seconds(epoch.epoch_s),
                report.seconds(epoch.waiting_s),
                report.num_bytes(epoch.num_bytes),
                str(bits),
                f"{variance_bound(fixed):.3g}",
                "-",
            ]
        )
    print(report.table(rows, HEADER))
    return 0


def _row(point: Point, best: Point) -> list[str]:
    return [
        "*" if point is best else "",
        f"{point.lam:.2f}",
        str(point.group_size),
        report.seconds(point.epoch.epoch_s),
        report.seconds(point.epoch.waiting_s),
        report.num_bytes(point.epoch.num_bytes),
        f"{point.bits:.2f}",
        f"{point.variance:.3g}",
        report.seconds(point.solve_s),
    ]


def _plain(point: Point, best: Point) -> dict[str, object]:
    return {
        "lambda": point.lam,
        "group_size": point.group_size,
        "epoch_s": point.epoch.epoch_s,
        "waiting_s": point.epoch.waiting_s,
        "num_bytes": point.epoch.num_bytes,
        "mean_bits": point.bits,
        "variance_bound": point.variance,
        "solve_s": point.solve_s,
        "on_front": point.on_front,
        "knee": point is best,
    }
