"""`bitring sweep`."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.assignment import tune
from simulator.cost import PairCosts
from simulator.epoch import simulate, variance_bound, with_bits
from simulator.picture import fronts
from simulator.policy import ProblemError
from simulator.timeline import TimelineError
from simulator.workload import Workload
from toolkit import report
from toolkit.commands.simulate import read_both
from toolkit.errors import UserError

FIXED = (1, 2, 4, 8, 16, 32)


def run(args: argparse.Namespace) -> int:
    if args.lambdas < 2 or min(args.bandwidths) <= 0:
        raise UserError("give --lambdas >= 2 and --bandwidths above 0")
    recorded, found = read_both(Path(args.workload), args.machine)
    points = []
    try:
        for point in _shown(_grid(recorded, found.pair_costs(), args), len(args.bandwidths) * len(args.semantics)):
            points += point
        with Path(args.out).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(point) + "\n" for point in points)
        if args.picture:
            fronts(Path(args.picture), points, f"{recorded.graph}, {recorded.ranks} ranks, {found.name}")
    except (ProblemError, TimelineError) as error:
        raise UserError(str(error)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"can't write the sweep: {error}; name other files with --out and --picture") from None
    best = [_fastest(points, factor) for factor in args.bandwidths]
    print(f"{len(points):,} epochs simulated; {args.out}" + (f", {args.picture}" if args.picture else ""))
    print(report.table(best, ["bandwidth x", "fastest", "epoch", "float32", "gain", "variance"]))
    return 0


def _grid(recorded: Workload, costs: PairCosts, args: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """One list of points for every network and ring."""
    lambdas = np.linspace(0, 1, args.lambdas).tolist()
    for factor, semantics in itertools.product(args.bandwidths, args.semantics):
        scaled = replace(costs, theta_s_per_byte=costs.theta_s_per_byte / factor)
        where = {"bandwidth_factor": factor, "semantics": semantics, "links": args.links}
        choices = {"semantics": semantics, "links": args.links}
        tuned = tune(recorded, scaled, scaled, lambdas=lambdas, group_sizes=args.group_sizes, **choices)
        found = [
            where
            | {"method": "adaptive", "lambda": p.lam, "group_size": p.group_size, "mean_bits": p.bits}
            | {"epoch_s": p.epoch.epoch_s, "waiting_s": p.epoch.waiting_s, "num_bytes": p.epoch.num_bytes}
            | {"variance_bound": p.variance, "on_front": p.on_front}
            for p in tuned
        ]
        for bits in FIXED:
            fixed = with_bits(recorded, bits)
            epoch = simulate(fixed, scaled, **choices)
            found.append(
                where
                | {"method": f"fixed {bits}", "lambda": None, "group_size": None, "mean_bits": bits}
                | {"epoch_s": epoch.epoch_s, "waiting_s": epoch.waiting_s, "num_bytes": epoch.num_bytes}
                | {"variance_bound": variance_bound(fixed), "on_front": False}
            )
        yield found


def _shown(grid: Iterator[list[dict[str, Any]]], total: int) -> Iterator[list[dict[str, Any]]]:
    """With a progress bar where a person watches."""
    if not sys.stderr.isatty():
        return grid
    from tqdm import tqdm

    bar: Iterator[list[dict[str, Any]]] = iter(tqdm(grid, total=total, unit="network", leave=False))
    return bar


def _fastest(points: list[dict[str, Any]], factor: float) -> list[str]:
    here = [point for point in points if point["bandwidth_factor"] == factor]
    best = min(here, key=lambda point: (point["epoch_s"], point["variance_bound"]))
    plain = min((point for point in here if point["method"] == "fixed 32"), key=lambda point: point["epoch_s"])
    name = best["method"]
    if best["lambda"] is not None:
        name += f", lambda {best['lambda']:.2f}, group {best['group_size']}"
    return [
        f"{factor:g}",
        f"{name} ({best['semantics']})",
        report.seconds(best["epoch_s"]),
        report.seconds(plain["epoch_s"]),
        report.ratio(plain["epoch_s"], best["epoch_s"]),
        f"{best['variance_bound']:.3g}",
    ]
