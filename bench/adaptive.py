"""Adaptive widths in training: accuracy, noise at equal bytes, what lambda, group size and period change.

    python -m bench.adaptive [equal sensitivity accuracy] [--graph digits] [--ranks 4] [--seeds 5]
                             [--graphs coauthor_physics] [--kinds gcn sage]

equal         fixed 4 bits and drawn widths, each beside adaptive widths of as many bytes, and of as many seconds (a
              channel that isn't the slowest takes more bits for nothing), with a budget for each exchange and with a
              joint one, and random ones: the noise of the weight gradients (`bitring noise`) and test accuracy over
              seeds (whole runs: the first 11 of 100 epochs at 8 bits); from the recorded workload the variance,
              forward and backward apart
sensitivity   lambda, group size and period: the noise measured beside the variance that the simulator says
accuracy      3 x 256 on --graphs: Vanilla, adaptive widths and AdaQP as published, over seeds; 60 epochs, the first 20
              of them at 8 bits

The first two by default, on a small graph: some minutes. Their costs are those of emulated-4, so widths are the same
whenever they run. Ratios are of one run, side by side. Named graphs need $BITRING_DATA. Seconds on a slow network:
bench.adaptive_network.
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
from typing import Any, get_args

import numpy as np

from bench import codecs
from bench.common import Goal, file_result, goals_table, plain_goals
from simulator import machine, workload
from simulator.assignment import Point, assign_workload, tune
from simulator.cost import PairCosts
from simulator.epoch import exchange_variance_bound, simulate, with_bits
from simulator.exchanges import Budget, fronts_of, relative
from simulator.policy import joint
from simulator.workload import Workload
from toolkit import report

MACHINE = "emulated-4"
GROUP, PERIOD, LEAD = 10, 10, 1
AFTER = PERIOD + LEAD + 5  # epochs before the noise is measured: at assigned widths
ADAPTIVE = ["method.codec=quantised", "method.widths=adaptive", f"method.machine={MACHINE}", f"method.period={PERIOD}",
            f"method.lead={LEAD}", f"method.group_size={GROUP}"]  # fmt: skip
POSTED = [*ADAPTIVE, "method.policy=posted"]
FIXED = {"fixed 4": ["method.codec=quantised", "method.bits=4"],
         "drawn from 2, 4, 8": ["method.codec=quantised", "method.widths=uniform"]}  # fmt: skip
PUBLISHED = ["method.plan=paper", "method.quantise_all=true", "method.codec=quantised", "method.widths=adaptive",
             "method.policy=adaptive", "method.hidden=false"]  # fmt: skip  # in the paper no message is free
PARTS = ("equal", "sensitivity", "accuracy")
LAMBDAS, GROUPS, PERIODS = (0.0, 0.25, 0.5, 0.75, 1.0), (1, 10, 100, 1000), (5, 10, 20)


def record(graph: str, ranks: int) -> Workload:
    """The workload of a short run, its messages alone: nothing in it differs from run to run."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*codecs.settings(graph), *POSTED, f"train.epochs={AFTER}"]
        run = codecs.command("train", ranks, overrides, "--run-dir", f"{folder}/run")
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        load = workload.load(Path(folder, "run", "workload.npz"))
    idle = np.zeros(load.ranks)
    exchanges = [
        dataclasses.replace(e, encode_s=idle, decode_s=idle, central_s=idle, marginal_s=idle) for e in load.exchanges
    ]
    return dataclasses.replace(
        load, exchanges=tuple(exchanges), held_s=idle, dense_s=idle, weight_gradient_s=0.0, weight_gradient_bytes=0
    )


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
    """Seconds of an epoch's messages."""
    return point.epoch.epoch_s


def lambda_for(
    load: Workload, costs: PairCosts, limit: float, measure: Callable[[Point], float], policy: str, budget: Budget
) -> float:
    """The lambda whose widths take most of ``limit``, and no more where any do."""
    lambdas = [*np.linspace(0, 1, 101), *(1 - np.geomspace(0.01, 1e-6, 50))]  # summed over exchanges, much lies near 1
    points = tune(load, costs, costs, lambdas=lambdas, group_sizes=[GROUP], policy=policy, budget=budget)
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
        contestants: dict[str, list[str]] = {name: FIXED[name]}
        for what, limit, measure, policy in (
            ("bytes", num_bytes, sent, "total"),
            ("seconds", seconds, lasts, "posted"),
        ):
            for budget in get_args(Budget):
                lam = lambda_for(load, costs, limit, measure, policy, budget)
                chosen = [*ADAPTIVE, f"method.policy={policy}", f"method.budget={budget}", f"method.lam={lam}"]
                contestants[f"adaptive, {budget}, as many {what}"] = chosen
        by_seconds = contestants["adaptive, each, as many seconds"][-1]
        contestants["random, as many seconds"] = [*ADAPTIVE, "method.policy=random", by_seconds]
        for contestant, overrides in contestants.items():
            told = codecs.accuracy(ranks, seeds, [*codecs.settings(graph), *overrides])
            measured = noise(graph, ranks, overrides)
            chosen_lam = f"{float(overrides[-1].split('=')[1]):.4g}" if contestant != name else "-"
            results.append(
                {"against": name, "lambda": chosen_lam, "method": contestant, "accuracy": told, "noise": measured}
            )
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
    """Variance of rounding by direction: fixed 4 bits, and adaptive widths in as many bytes or seconds of messages.

    budget each: every exchange has what fixed 4 bits take there. joint: all have the sum, as method.budget spends it.
    """
    fixed, ranks = with_bits(load, 4), load.ranks
    a_byte = PairCosts(theta_s_per_byte=np.ones((ranks, ranks)), gamma_s=np.zeros((ranks, ranks)))
    found: list[dict[str, Any]] = []
    for what, policy, price in (("bytes", "total", a_byte), ("seconds", "posted", costs)):
        fronts = [fronts_of(e, price, policy, GROUP) for e in load.exchanges]
        spent = [price.seconds(e.channel_bytes()) for e in fixed.exchanges]
        limits = [float(one.sum() if policy == "total" else one.max()) for one in spent]
        each = [joint.within(own, limit).variance for own, limit in zip(fronts, limits, strict=True)]
        every = [front for own in fronts for front in own]
        left = iter(joint.within(every, sum(limits), relative(fronts)).rounds)
        together = [sum(next(left).variance for _ in own) for own in fronts]
        for budget, variances in (("each", each), ("joint", together)):
            for direction in ("forward", "backward"):
                where = [place for place, e in enumerate(load.exchanges) if e.direction == direction]
                found.append(
                    {
                        "equal": what,
                        "budget": budget,
                        "direction": direction,
                        "fixed": sum(exchange_variance_bound(fixed.exchanges[place]) for place in where),
                        "adaptive": sum(variances[place] for place in where),
                    }
                )
    rows = [
        [one["equal"], one["budget"], one["direction"], f"{one['fixed']:.3g}", f"{one['adaptive']:.3g}",
         report.ratio(one["fixed"], one["adaptive"])]
        for one in found
    ]  # fmt: skip
    print("\nVariance of rounding in the recorded workload, in the bytes or seconds of fixed 4 bits")
    print(report.table(rows, ["equal", "budget", "direction", "fixed 4", "adaptive", "less"]))
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
        measured = noise(graph, ranks, [*POSTED, *overrides], after)
        said = simulated.variance
        results.append({what: value, "variance": said, "bytes": simulated.workload.epoch_bytes(), "noise": measured})
        sent = report.num_bytes(simulated.workload.epoch_bytes())
        rows.append([what, f"{value:g}", sent, f"{said:.3g}", f"{measured['codec']:.2e}", f"{measured['dropout']:.2f}"])
    print(f"\nSensitivity, {graph}, {ranks} ranks: simulated variance, measured noise of the weight gradients")
    print(report.table(rows, ["", "value", "rows", "variance", "noise", "dropout's"]), flush=True)
    return results


def accuracy(graphs: Sequence[str], kinds: Sequence[str], ranks: int, seeds: int) -> list[dict[str, Any]]:
    """Test accuracy at best validation, 3 x 256, and the noise of the gradients beside dropout's."""
    soon = ["method.period=15"]
    variants = {
        "Vanilla": [],
        "adaptive": ["method.name=adaqp", *soon],
        "adaptive, joint": ["method.name=adaqp", "method.budget=joint", *soon],
        "AdaQP as published": [*PUBLISHED, *soon],
    }
    results = []
    for graph in graphs:
        for kind in kinds:
            base = [f"model.kind={kind}", "model.hidden=256", "train.epochs=60", f"method.machine={MACHINE}"]
            rows: list[list[str]] = []
            found: list[dict[str, Any]] = []
            for name, overrides in variants.items():
                told = codecs.accuracy(ranks, seeds, [*codecs.settings(graph), *base, *overrides])
                measured = noise(graph, ranks, [*base, *overrides], 25) if overrides else None
                found.append({"method": name, "accuracy": told, "noise": measured})
                points = told["mean_percent"] - found[0]["accuracy"]["mean_percent"]
                rows.append(
                    [
                        name, f"{told['mean_percent']:.2f} +- {told['deviation_percent']:.2f}", f"{points:+.2f}",
                        report.num_bytes(told["train_bytes"]), f"{measured['codec']:.1e}" if measured else "0",
                        f"{measured['dropout']:.2g}" if measured else "-",
                    ]
                )  # fmt: skip
            print(f"\n{graph}, {kind} 3 x 256, {ranks} ranks, {seeds} seeds")
            header = ["method", "test accuracy, %", "points", "rows an epoch", "gradient noise", "dropout's"]
            print(report.table(rows, header), flush=True)
            goals = [
                Goal(what=f"{one['method']}: points lost", value=found[0]["accuracy"]["mean_percent"]
                     - one["accuracy"]["mean_percent"], goal=0.30) for one in found[1:]
            ]  # fmt: skip
            goals += [
                Goal(what=f"{one['method']}: noise / dropout's", value=one["noise"]["codec"] / one["noise"]["dropout"],
                     goal=0.1) for one in found[1:]
            ]  # fmt: skip
            print(goals_table(goals), flush=True)
            results.append({"graph": graph, "kind": kind, "methods": found, "goals": plain_goals(goals)})
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), default=[])
    parser.add_argument("--graph", default="digits")
    parser.add_argument("--ranks", type=int, choices=(4,), default=4, help="those of emulated-4")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--graphs", nargs="+", default=["coauthor_physics"], help="accuracy")
    parser.add_argument("--kinds", nargs="+", default=["gcn", "sage"], help="accuracy")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds: 2 or more, or there is no deviation")
    small = {"graph": args.graph, "seeds": args.seeds}
    settings: dict[str, dict[str, Any]] = {
        "equal": small, "sensitivity": {"graph": args.graph}, "accuracy": {"seeds": args.seeds},
    }  # fmt: skip
    for name in args.parts or ("equal", "sensitivity"):
        if name == "equal":
            found: Any = equal(args.graph, args.ranks, args.seeds)
        elif name == "sensitivity":
            found = sensitivity(args.graph, args.ranks)
        else:
            found = accuracy(args.graphs, args.kinds, args.ranks, args.seeds)
        setting = {"ranks": args.ranks, **settings[name]}
        about = name if name == "accuracy" else f"{name}-{args.graph}"
        print(file_result(f"adaptive-{about}", setting | {"results": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
