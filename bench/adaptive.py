"""Adaptive widths against fixed and drawn ones at equal bytes, and what lambda, group size and period change.

    python -m bench.adaptive [equal sensitivity network] [--graph digits] [--ranks 4] [--seeds 3] [--repeats 7]

equal         fixed 4 bits and drawn widths, each beside adaptive widths of as many bytes, and of as many seconds (a
              channel that isn't the slowest takes more bits for nothing), and random ones: the noise of the weight
              gradients (`bitring noise`) and test accuracy over seeds; from the recorded workload the variance,
              forward and backward apart, with one budget for each exchange and with a joint one
sensitivity   lambda, group size and period: the noise measured beside the variance that the simulator says
network       seconds of an epoch on the emulated network (root, $BITRING_DATA; some minutes): the papers' plan, the
              exact one, fixed, drawn and adaptive widths, beside the limit that no widths can pass

The first two by default, on a small graph: some minutes. The costs are those of emulated-4, so widths are the same
whenever it runs. Ratios are of one run, side by side.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import codecs, netepoch
from bench.common import file_result
from bench.netlab import Lab
from bench.overlap import configuration
from simulator import machine, workload
from simulator.assignment import Point, assign_workload, tune
from simulator.cost import PairCosts
from simulator.epoch import limit_s, simulate, variance_bound, with_bits
from simulator.exchanges import problems_of
from simulator.policy import best_front, joint
from simulator.workload import Workload
from toolkit import report

MACHINE = "emulated-4"
GROUP, PERIOD, LEAD = 10, 10, 1
AFTER = PERIOD + LEAD + 5  # epochs before the noise is measured: at assigned widths
ADAPTIVE = ["method.codec=quantised", "method.widths=adaptive", f"method.machine={MACHINE}", f"method.period={PERIOD}",
            f"method.lead={LEAD}", f"method.group_size={GROUP}", "method.policy=posted"]  # fmt: skip
FIXED = {"fixed 4": ["method.codec=quantised", "method.bits=4"],
         "drawn from 2, 4, 8": ["method.codec=quantised", "method.widths=uniform"]}  # fmt: skip
LAMBDAS, GROUPS, PERIODS = (0.0, 0.25, 0.5, 0.75, 1.0), (1, 10, 100, 1000), (5, 10, 20)


def record(graph: str, ranks: int) -> Workload:
    """The workload of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*codecs.settings(graph), *ADAPTIVE, f"train.epochs={AFTER}"]
        run = codecs.command("train", ranks, overrides, "--run-dir", f"{folder}/run")
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        return workload.load(Path(folder, "run", "workload.npz"))


def noise(graph: str, ranks: int, overrides: Sequence[str], after: int = AFTER) -> dict[str, Any]:
    """All layers' noise, after so many epochs."""
    run = codecs.command("noise", ranks, [*codecs.settings(graph), *overrides], "--json", "--after", str(after))
    told = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(told)[-1]
    return found


def sent(point: Point) -> float:
    """Bytes of an epoch."""
    return point.epoch.num_bytes


def lasts(point: Point) -> float:
    """Seconds of an epoch."""
    return point.epoch.epoch_s


def lambda_for(load: Workload, costs: PairCosts, limit: float, measure: Callable[[Point], float]) -> float:
    """The lambda whose widths take most of ``limit``, and no more where any do."""
    points = tune(load, costs, costs, lambdas=np.linspace(0, 1, 101).tolist(), group_sizes=[GROUP], at_once=True)
    fitting = [p for p in points if measure(p) <= limit] or [min(points, key=measure)]
    return max(fitting, key=lambda p: (measure(p), p.lam)).lam


def budgets(load: Workload, costs: PairCosts) -> dict[str, tuple[float, float]]:
    """(bytes, seconds) of an epoch of every contestant in FIXED; drawn widths by their mean."""
    at = {bits: with_bits(load, bits) for bits in (2, 4, 8)}
    size = {bits: float(one.epoch_bytes()) for bits, one in at.items()}
    last = {bits: simulate(one, costs).epoch_s for bits, one in at.items()}
    return {"fixed 4": (size[4], last[4]), "drawn from 2, 4, 8": (sum(size.values()) / 3, sum(last.values()) / 3)}


def equal(graph: str, ranks: int, seeds: int) -> dict[str, Any]:
    load, costs = record(graph, ranks), machine.preset(MACHINE).pair_costs()
    results: list[dict[str, Any]] = []
    for name, (num_bytes, seconds) in budgets(load, costs).items():
        by_bytes, by_seconds = lambda_for(load, costs, num_bytes, sent), lambda_for(load, costs, seconds, lasts)
        contestants = {
            name: FIXED[name],
            "adaptive, as many bytes": [*ADAPTIVE, f"method.lam={by_bytes}"],
            "adaptive, as many seconds": [*ADAPTIVE, f"method.lam={by_seconds}"],
            "random, as many seconds": [*ADAPTIVE[:-1], "method.policy=random", f"method.lam={by_seconds}"],
        }
        for contestant, overrides in contestants.items():
            told = codecs.accuracy(ranks, seeds, [*codecs.settings(graph), *overrides])
            measured = noise(graph, ranks, overrides)
            lam = overrides[-1].split("=")[1] if contestant != name else "-"
            results.append({"against": name, "lambda": lam, "method": contestant, "accuracy": told, "noise": measured})
    rows = [
        [
            r["method"], r["lambda"], report.num_bytes(r["accuracy"]["train_bytes"]), f"{r['noise']['codec']:.2e}",
            f"{r['noise']['dropout']:.2f}",
            f"{r['accuracy']['mean_percent']:.2f} +- {r['accuracy']['deviation_percent']:.2f}",
        ]
        for r in results
    ]  # fmt: skip
    print(f"\n{graph}, {ranks} ranks, {seeds} seeds (rows: the mean of all epochs, the first period at 8 bits)")
    print(report.table(rows, ["method", "lambda", "rows", "noise", "dropout's", "accuracy, %"]), flush=True)
    return {"measured": results, "offline": directions(load, costs)}


def directions(load: Workload, costs: PairCosts) -> list[dict[str, Any]]:
    """Variance of rounding by direction: fixed 4 bits, adaptive widths in as many seconds, and one joint budget.

    Seconds of messages alone: each exchange has what fixed 4 bits take there.
    """
    fixed = with_bits(load, 4)
    fronts = [best_front(problems_of(e, costs, GROUP, at_once=True)[0]) for e in load.exchanges]
    limits = [float(costs.seconds(e.channel_bytes()).max()) for e in fixed.exchanges]
    apart = [front.least_variance_within(limit) for front, limit in zip(fronts, limits, strict=True)]
    found: list[dict[str, Any]] = []
    rows = []
    for direction in ("forward", "backward"):
        where = [place for place, e in enumerate(load.exchanges) if e.direction == direction]
        plain = variance_bound(dataclasses.replace(fixed, exchanges=tuple(fixed.exchanges[place] for place in where)))
        adaptive = sum(apart[place].variance for place in where)
        found.append({"direction": direction, "fixed": plain, "adaptive": adaptive})
        rows.append([direction, f"{plain:.3g}", f"{adaptive:.3g}", report.ratio(plain, adaptive)])
    together, each = joint.within(fronts, sum(limits)), sum(one.variance for one in apart)
    found.append({"direction": "both", "each_problem": each, "joint": together.variance})
    print("\nVariance of rounding in the recorded workload, each exchange in the seconds of fixed 4 bits")
    print(report.table(rows, ["direction", "fixed 4", "adaptive", "less"]))
    print(f"one joint budget of as many seconds: {together.variance:.3g}, {report.ratio(each, together.variance)} less")
    return found


def sensitivity(graph: str, ranks: int) -> list[dict[str, Any]]:
    load, costs = record(graph, ranks), machine.preset(MACHINE).pair_costs()
    tried = [("lambda", lam, [f"method.lam={lam}"]) for lam in LAMBDAS]
    tried += [("group", size, [f"method.group_size={size}"]) for size in GROUPS]
    tried += [("period", epochs, [f"method.period={epochs}"]) for epochs in PERIODS]
    results, rows = [], []
    for what, value, overrides in tried:
        lam, size = value if what == "lambda" else 0.5, value if what == "group" else GROUP
        simulated = assign_workload(load, costs, "posted", lam=lam, group_size=int(size))
        # every period ends there and the next widths are not in force yet: ranges are as old as they get
        after = 2 * max(PERIODS) if what == "period" else AFTER
        measured = noise(graph, ranks, [*ADAPTIVE, *overrides], after)
        said = simulated.variance
        results.append({what: value, "variance": said, "bytes": simulated.workload.epoch_bytes(), "noise": measured})
        sent = report.num_bytes(simulated.workload.epoch_bytes())
        rows.append([what, f"{value:g}", sent, f"{said:.3g}", f"{measured['codec']:.2e}", f"{measured['dropout']:.2f}"])
    print(f"\nSensitivity, {graph}, {ranks} ranks: simulated variance, measured noise of the weight gradients")
    print(report.table(rows, ["", "value", "rows", "variance", "noise", "dropout's"]), flush=True)
    return results


def network(repeats: int, graphs: Sequence[str], kinds: Sequence[str]) -> list[dict[str, Any]]:
    ours = ["method.codec=quantised", "method.widths=adaptive", "method.lead=0"]
    variants = {
        "paper plan, float32": ["method.plan=paper"],
        "exact plan, float32": [],
        "4 bits": ["method.codec=quantised", "method.bits=4"],
        "drawn from 2, 4, 8": ["method.codec=quantised", "method.widths=uniform"],
        "papers' plan, adaptive": ["method.plan=paper", "method.quantise_all=true", *ours, "method.policy=adaptive"],
        **{f"adaptive, lambda {lam}": [*ours, f"method.lam={lam}"] for lam in (0.0, 0.5, 1.0)},
    }
    results = []
    with Lab.uniform(4, "100mbit", "100us").running() as lab:
        for graph in graphs:
            for kind in kinds:
                with tempfile.TemporaryDirectory() as folder:
                    base = configuration(graph, kind, "exact")
                    measured = netepoch.compare(lab, base, variants, repeats, Path(folder))
                    costs = machine.read(Path(folder, "machine.toml")).pair_costs()
                    least = limit_s(workload.load(Path(folder, f"{len(variants) - 3}.npz")), costs)
                paper = measured["paper plan, float32"].epoch_s
                rows = [
                    [name, report.seconds(one.epoch_s), report.ratio(paper, one.epoch_s), f"{one.epoch_s / least:.2f}",
                     report.num_bytes(one.train_bytes)]
                    for name, one in measured.items()
                ]  # fmt: skip
                print(f"\n{graph}, {kind}, 4 hosts, 100 Mbit/s a pair; limit at 2 bits {report.seconds(least)}")
                print(report.table(rows, ["method", "epoch", "x paper", "of the limit", "rows sent"]), flush=True)
                results.append({"graph": graph, "kind": kind, "limit_s": least, "measured": netepoch.plain(measured)})
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=("equal", "sensitivity", "network", []), default=[])
    parser.add_argument("--graph", default="digits")
    parser.add_argument("--ranks", type=int, choices=(4,), default=4, help="those of emulated-4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7, help="network: measured epochs")
    parser.add_argument("--graphs", nargs="+", default=["coauthor_physics"], help="network")
    parser.add_argument("--kinds", nargs="+", default=["gcn", "sage"], help="network")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds: 2 or more, or there is no deviation")
    for name in args.parts or ("equal", "sensitivity"):
        if name == "equal":
            found: Any = equal(args.graph, args.ranks, args.seeds)
        elif name == "sensitivity":
            found = sensitivity(args.graph, args.ranks)
        else:
            found = network(args.repeats, args.graphs, args.kinds)
        setting = {"graph": args.graph, "ranks": args.ranks, "seeds": args.seeds, "repeats": args.repeats}
        print(file_result(f"adaptive-{name}", setting | {"results": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
