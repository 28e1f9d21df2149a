"""`bitring validate`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
from pathlib import Path
from typing import Any

from simulator.picture import scatter
from simulator.timeline import TimelineError
from toolkit import report
from toolkit.errors import UserError

TARGET_ERROR = 0.05


def run(args: argparse.Namespace) -> int:
    """Real epochs on the emulated network beside simulated ones."""
    try:
        fidelity = importlib.import_module("bench.fidelity")
    except ModuleNotFoundError as error:
        if error.name not in ("bench", "bench.fidelity"):
            raise
        raise UserError(
            "`bitring validate` runs the emulated network of the source checkout (bench/netlab), which is not "
            "installed with the package; run it in a clone: python -m toolkit.cli validate"
        ) from None
    unknown = [name for name in args.networks if name not in fidelity.networks()]
    if unknown:
        raise UserError(f"--networks {unknown[0]}: there are {', '.join(fidelity.networks())}")
    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats}; give 1 or more epochs")
    if os.environ.get("OMPI_COMM_WORLD_SIZE"):
        raise UserError("`bitring validate` starts its own ranks; call it without mpirun")
    results: list[dict[str, Any]] = []
    for found in fidelity.compare_all(args.networks, args.graphs, args.kinds, args.repeats):
        results.append(found)
        if not args.json:
            print(describe(found), end="\n\n", flush=True)
    told = summary(results)
    if args.picture:
        try:
            scatter(Path(args.picture), results, "epochs on the emulated network")
        except (OSError, ValueError) as error:
            what = error if isinstance(error, TimelineError) else f"can't write the picture: {error}"
            raise UserError(str(what)) from None
    if args.json:
        print(json.dumps(told | {"results": results}, indent=1))
    else:
        print(
            f"all {told['epochs']}: median error {told['median_error']:.1%} (target {TARGET_ERROR:.0%}), "
            f"95th percentile {told['p95_error']:.1%}, Kendall's tau {told['tau']:.2f} on average, "
            f"{told['least_tau']:.2f} at least (target 1)"
        )
    return 0


def errors(found: dict[str, Any]) -> list[float]:
    """Relative, signed: predicted over measured, less 1."""
    return [one["predicted_s"] / one["measured_s"] - 1 for one in found["methods"]]


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all networks, graphs and methods."""
    off = sorted(abs(error) for found in results for error in errors(found))
    taus = [found["tau"] for found in results]
    return {
        "epochs": len(off),
        "median_error": statistics.median(off),
        "p95_error": off[max(0, -(-95 * len(off) // 100) - 1)],
        "tau": statistics.mean(taus),
        "least_tau": min(taus),
    }


def describe(found: dict[str, Any]) -> str:
    """One network, one graph, one model: a line a method."""
    rows = [
        [one["method"], report.seconds(one["measured_s"]), report.seconds(one["predicted_s"]), f"{error:+.1%}"]
        for one, error in zip(found["methods"], errors(found), strict=True)
    ]
    head = f"{found['network']}, {found['graph']}, {found['kind']}: tau {found['tau']:.2f}\n"
    return head + report.table(rows, ["method", "measured", "predicted", "error"])
