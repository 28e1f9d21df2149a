"""What knowing the ring is worth: one linear program over all rounds against a front for each round, on real graphs.

    python -m bench.ring [--graphs cora amazon_computers coauthor_physics] [--ranks 4 8] [--group-size 50]

Each graph is partitioned by METIS and trained for some epochs (GCN 3 x 64, dropout 0.5, LayerNorm, the exact plan); its
workload is what widths are chosen for, ranges and coefficients as they were. Every pair takes 100 Mbit/s and 100 us, so
differences come from the partition alone. Ways to the same variance of an exchange, and the ring's time for each:

    exact     a front for each round, one lambda for all (AdaQP's objective: the sum of the rounds' slowest channels)
    joint     the same sum of seconds, with one budget for all rounds (policy/joint.py), at exact's variance
    uniform   every group draws its width from 2, 4, 8
    ring LP   least time of the ring itself (policy/ring_lp.py) at no more variance than the other one has

What the LP gains over `exact` is partly its one budget; what it gains over `joint` is the ring's.

The ring is the LP's: no barriers, eager, a receiver's link serial. Sums over the exchanges of an epoch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import file_result
from simulator import workload as workloads
from simulator.keyed import mix64
from simulator.policy import Assignment, RoundProblem, Settings, assign, best_front, joint, ring_lp, rounds_of
from simulator.workload import Exchange, Workload
from toolkit import report

THETA, GAMMA, LAMBDA = 8 / 1e8, 1e-4, 0.5
CONFIG = """\
[data]
name = "{graph}"
[model]
kind = "gcn"
layers = 3
hidden = 64
dropout = 0.5
norm = "layer"
[train]
epochs = {epochs}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Seconds of an epoch's rings at equal variance. ``bound_s``: no assignment of that variance is faster."""

    method: str
    ring_s: float
    rounds_s: float  # the sum over rounds that AdaQP counts
    lp_s: float
    bound_s: float
    solve_s: float  # of the linear programs

    @property
    def gain(self) -> float:
        return 1 - self.lp_s / self.ring_s if self.ring_s else 0.0


def trained(graph: str, ranks: int, epochs: int, folder: Path) -> Workload:
    """The workload of a short run."""
    config = folder / "run.toml"
    config.write_text(CONFIG.format(graph=graph, epochs=epochs), encoding="utf-8")
    command = [sys.executable, "-m", "toolkit.cli", "train", str(config), "-np", str(ranks), "--launcher", "mpirun"]
    subprocess.run([*command, "--run-dir", str(folder / "run")], check=True, stdout=subprocess.DEVNULL)
    return workloads.load(folder / "run" / "workload.npz")


def rounds_of_exchange(exchange: Exchange, group_size: int) -> list[RoundProblem]:
    n = len(exchange.rows)
    known = replace(exchange, alpha_squared=np.nan_to_num(exchange.alpha_squared, nan=1.0))
    return rounds_of(known, np.full((n, n), THETA), np.full((n, n), GAMMA), group_size)


def at_variance(choose: Callable[[float], Sequence[Assignment]], variance: float) -> Sequence[Assignment]:
    """What is chosen at the least lambda whose variances sum to no more than this."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        enough = sum(a.variance for a in choose(middle)) <= variance
        low, high = (low, middle) if enough else (middle, high)
    return choose(high)


def compare(exchange: Exchange, group_size: int, key: int) -> list[Compared]:
    """Each contestant against the ring LP at the contestant's variance."""
    rounds = rounds_of_exchange(exchange, group_size)
    ranks = len(exchange.rows)
    fronts = [best_front(problem) for problem in rounds]
    drawn = [assign("uniform", p, Settings(lam=LAMBDA, key=mix64(key, i))) for i, p in enumerate(rounds)]
    separate = [front.at(LAMBDA) for front in fronts]
    contestants: dict[str, Sequence[Assignment]] = {
        "exact": separate,
        "joint": at_variance(lambda lam: joint.at(fronts, lam).rounds, sum(a.variance for a in separate)),
        "uniform": drawn,
        "exact at uniform's variance": at_variance(
            lambda lam: [front.at(lam) for front in fronts], sum(a.variance for a in drawn)
        ),
    }
    found = []
    for method, chosen in contestants.items():
        variance = sum(a.variance for a in chosen)
        answer = ring_lp.least_time_within(rounds, ranks, variance)
        found.append(
            Compared(
                method=method,
                ring_s=ring_lp.ring_seconds(rounds, tuple(a.bits for a in chosen), ranks),
                rounds_s=sum(a.seconds for a in chosen),
                lp_s=answer.seconds,
                bound_s=answer.lower_bound,
                solve_s=answer.solve_seconds,
            )
        )
    return found


def summed(parts: Sequence[Compared]) -> Compared:
    """An epoch's exchanges together."""
    names = ("ring_s", "rounds_s", "lp_s", "bound_s", "solve_s")
    total = {name: sum(getattr(part, name) for part in parts) for name in names}
    return Compared(method=parts[0].method, **total)


def measure(graph: str, ranks: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        load = trained(graph, ranks, args.epochs, Path(folder))
    busy = [exchange for exchange in load.exchanges if exchange.rows.any()]
    by_exchange = [compare(exchange, args.group_size, number) for number, exchange in enumerate(busy)]
    rows = []
    for parts in zip(*by_exchange, strict=True):
        one = summed(parts)
        rows.append(
            {"graph": graph, "ranks": ranks, "method": one.method, "ring_s": one.ring_s, "rounds_s": one.rounds_s}
            | {"lp_s": one.lp_s, "bound_s": one.bound_s, "gain": one.gain, "solve_s": one.solve_s}
            | {"gain_by_exchange": [part.gain for part in parts]}
        )
    return rows


def line(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['graph']}, {row['ranks']} ranks, {row['method']}",
        *(report.seconds(row[name]) for name in ("rounds_s", "ring_s", "lp_s", "bound_s")),
        report.percent(row["gain"]),
        report.seconds(row["solve_s"]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["cora", "amazon_computers", "coauthor_physics"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--group-size", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    rows = []
    for graph in args.graphs:
        for ranks in args.ranks:
            rows += measure(graph, ranks, args)
            print(json.dumps(rows[-1]), file=sys.stderr)
    header = ["seconds of an epoch's rings", "rounds summed", "ring", "ring LP", "bound", "LP gains", "solved in"]
    print(report.table([line(row) for row in rows], header))
    setting = {"group_size": args.group_size, "epochs": args.epochs, "theta_s_per_byte": THETA, "gamma_s": GAMMA}
    print(file_result("ring", setting | {"results": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
