"""Adaptive widths on a slow network: seconds of an epoch, and how good an offline choice is.

    python -m bench.adaptive_network [network tune] [--graphs coauthor_physics] [--kinds gcn sage]
                                     [--networks alike unequal] [--repeats 7]

network   seconds of an epoch, in one job, epoch by epoch in turn: the papers' plan and the exact one in float32, fixed,
          drawn and adaptive widths, beside the limit that no widths can pass (simulator.epoch.limit_s)
tune      what `bitring tune --real` finds, and how far its offline choice is from that

The emulated networks of bench.fidelity: 4 hosts, pairs alike at 100 Mbit/s or unequal. 3 x 256; sbm: generated, 100,000
nodes. Needs root, and $BITRING_DATA for named graphs; some minutes each. One file a part.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import netepoch
from bench.adaptive import PUBLISHED
from bench.common import Goal, file_result, goals_table, plain_goals
from bench.fidelity import networks
from bench.overlap import configuration
from simulator import machine, workload
from simulator.epoch import limit_s
from toolkit import config as configs
from toolkit import report

PARTS = ("network", "tune")
PAPERS_BEST = 3.01  # times Vanilla's throughput (AdaQP, section 5)


def network(repeats: int, graphs: Sequence[str], kinds: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    ours = ["method.codec=quantised", "method.widths=adaptive", "method.lead=0"]
    paper, exact, published = "papers' plan, float32", "exact plan, float32", "AdaQP as published"
    variants = {
        paper: ["method.plan=paper"],
        exact: [],
        "4 bits": ["method.codec=quantised", "method.bits=4"],
        "2 bits": ["method.codec=quantised", "method.bits=2"],
        "drawn from 2, 4, 8": ["method.codec=quantised", "method.widths=uniform"],
        published: [*PUBLISHED, "method.lead=0"],
        **{f"adaptive, lambda {lam}": [*ours, f"method.lam={lam}"] for lam in (0.0, 0.5, 1.0)},
        "adaptive, joint, lambda 0.5": [*ours, "method.lam=0.5", "method.budget=joint"],
    }
    results = []
    for name in names:
        with networks()[name].running() as lab:
            for graph, kind in itertools.product(graphs, kinds):
                with tempfile.TemporaryDirectory() as folder:
                    base = configuration(graph, kind, "exact")
                    measured = netepoch.compare(lab, base, variants, repeats, Path(folder))
                    costs = machine.read(Path(folder, "machine.toml")).pair_costs()
                    place = list(variants).index("adaptive, lambda 0.5")
                    least = limit_s(workload.load(Path(folder, f"{place}.npz")), costs)
                against = measured[paper]
                rows = [
                    [
                        method, report.seconds(one.epoch_s), f"{against.epoch_s / one.epoch_s:.2f}",
                        f"{one.epoch_s / least:.2f}", report.num_bytes(one.train_bytes),
                        report.seconds(_mean(one, "flight")),
                        report.percent(1 - _mean(one, "flight") / _mean(against, "flight")),
                        report.percent(_coding(one)),
                    ]
                    for method, one in measured.items()
                ]  # fmt: skip
                print(f"\n{graph}, {kind}, 4 hosts, {name}; limit at 2 bits {report.seconds(least)}")
                header = ["method", "epoch", "x paper", "of limit", "rows sent", "in flight", "less", "coding"]
                print(report.table(rows, header), flush=True)
                ratio = {method: against.epoch_s / one.epoch_s for method, one in measured.items()}
                adaptive = measured["adaptive, lambda 0.5"]
                less = 1 - _mean(adaptive, "flight") / _mean(against, "flight")
                goals = [
                    Goal(what="(a) exact plan in float32, x paper", value=ratio[exact], goal=PAPERS_BEST,
                         more_is_better=True),
                    Goal(what="(b) AdaQP as published, x paper", value=ratio[published], goal=PAPERS_BEST,
                         more_is_better=True),
                    Goal(what="(c) adaptive, of the limit", value=adaptive.epoch_s / least, goal=1.25),
                    Goal(what="messages in flight, share less", value=less, goal=0.8, more_is_better=True),
                    Goal(what="writing and reading, share", value=_coding(adaptive), goal=0.05),
                ]  # fmt: skip
                print(goals_table(goals), flush=True)
                results.append(
                    {"network": name, "graph": graph, "kind": kind, "limit_s": least, "goals": plain_goals(goals),
                     "measured": _brief(measured)}
                )  # fmt: skip
    return results


def tune_real(graphs: Sequence[str], kinds: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    results = []
    for name in names:
        with networks()[name].running() as lab, tempfile.TemporaryDirectory() as folder:
            for graph, kind in itertools.product(graphs, kinds):
                path = Path(folder, f"{graph}-{kind}.toml")
                path.write_text(configs.to_toml(configuration(graph, kind, "exact")))
                command = [sys.executable, "-m", "toolkit.cli", "tune", "--real", str(path), "--json"]
                command += ["--launch", shlex.join(lab.starter())]
                done = subprocess.run(command, env=lab.environment(), check=True, stdout=subprocess.PIPE, text=True)
                told = json.loads(done.stdout)
                rows = [
                    [
                        ("*" if one["best"] else "") + ("o" if one["offline_choice"] else ""),
                        "-" if one["lambda"] is None else f"{one['lambda']:.2f}",
                        str(one["group_size"] or one["bits"]),
                        report.seconds(one["simulated_epoch_s"]), report.seconds(one["runs"][-1]["epoch_s"]),
                        report.seconds(one["runs"][-1]["judged_s"]), str(one["runs"][-1]["epochs"]),
                    ]
                    for one in told["candidates"]
                ]  # fmt: skip
                print(f"\n{graph}, {kind}, 4 hosts, {name}: the offline choice (o) is {told['behind']:.1%} behind")
                header = ["", "lambda", "group or bits", "simulated", "real", "judged", "epochs"]
                print(report.table(rows, header), flush=True)
                results.append({"network": name, "graph": graph, "kind": kind, **told})
    return results


def _mean(one: netepoch.Measured, stage: str) -> float:
    """Seconds of a stage, the mean over ranks."""
    return statistics.mean(one.stage(stage))


def _coding(one: netepoch.Measured) -> float:
    """The share of an epoch that writing and reading messages take."""
    return (_mean(one, "encode") + _mean(one, "decode")) / one.epoch_s


def _brief(measured: dict[str, netepoch.Measured]) -> dict[str, Any]:
    """For the file: stages as means over ranks."""
    stages = ("flight", "central", "marginal", "encode", "decode", "weight_gradients")
    return {
        name: {"epoch_s": one.epoch_s, "train_bytes": one.train_bytes, **{s: _mean(one, s) for s in stages}}
        for name, one in measured.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), default=[])
    parser.add_argument("--graphs", nargs="+", default=["coauthor_physics"])
    parser.add_argument("--kinds", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--networks", nargs="+", choices=list(networks()), default=["alike", "unequal"])
    parser.add_argument("--repeats", type=int, default=7, help="network: measured epochs")
    args = parser.parse_args()
    for name in args.parts or PARTS:
        if name == "network":
            found = network(args.repeats, args.graphs, args.kinds, args.networks)
        else:
            found = tune_real(args.graphs, args.kinds, args.networks)
        print(file_result("-".join(["adaptive", name, *args.graphs]), {"repeats": args.repeats, "results": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
