"""How long a sweep takes: 2,448 points as the command makes them, beside tuning point by point.

    python -m bench.sweep [--repeats 5]

8 ranks, 3 layers x 256 on a generated graph (sbm: 100,000 nodes, 2,000,000 directed edges); 101 lambdas x 6 group
sizes x 4 bandwidths, and 6 fixed widths for each bandwidth. The goal is 10 s, the process included, on one quiet
machine; the partition is made before and not counted. Tuning point by point (assignment.tune) is timed on one group
size, one bandwidth and 11 lambdas; that both give the same points is a test's matter.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.common import Goal, file_result, goals_table, plain_goals
from simulator import workload
from simulator.assignment import tune
from simulator.sweep import adaptive, lists
from simulator.wire import Wire
from toolkit import report
from toolkit.commands.offline import cluster

GOAL_S = 10.0
POINTS = 2448
RANKS = 8
GRAPH = ["--graph", "sbm", "-k", str(RANKS), "--set", "model.layers=3", "--set", "model.hidden=256"]
GRAPH += ["--set", "data.nodes=100000", "--set", "data.edges=1000000"]
GRID = [
    "--lambdas",
    "101",
    "--group-sizes",
    "1",
    "10",
    "50",
    "100",
    "500",
    "1000",
    "--bandwidths",
    "0.1",
    "0.3",
    "1",
    "10",
]


def bitring(*words: str) -> float:
    """Seconds of a command, whole."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "toolkit.cli", *words], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    costs = cluster(RANKS).pair_costs()
    lambdas = np.linspace(0, 1, 11).tolist()
    with tempfile.TemporaryDirectory() as folder:
        made, out = Path(folder) / "made.npz", Path(folder) / "sweep.jsonl"
        bitring("simulate", *GRAPH, "--save", str(made))
        whole = [bitring("sweep", *GRAPH, *GRID, "--out", str(out)) for _ in range(args.repeats)]
        points = len(out.read_text().splitlines())
        load = workload.load(made)
    one_by_one, at_once = [], []
    for _ in range(args.repeats):
        begin = time.perf_counter()
        tune(load, costs, costs, lambdas=lambdas, group_sizes=[10])
        one_by_one.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        adaptive(load, lists(load, 10), Wire(network=costs), lambdas, "adaptive")
        at_once.append(time.perf_counter() - begin)
    gain = statistics.median(one_by_one) / statistics.median(at_once)
    goals = [
        Goal(what="seconds of 2,448 points, the process included", value=statistics.median(whole), goal=GOAL_S),
        Goal(what="points", value=points, goal=POINTS, more_is_better=True),
    ]
    print(goals_table(goals))
    print(
        f"point by point takes {gain:.1f} times as long ({report.seconds(statistics.median(one_by_one))} for 11 points)"
    )
    messages = int(sum(exchange.rows.sum() for exchange in load.exchanges))
    result = {"messages": messages, "whole_s": whole, "one_by_one_s": one_by_one, "at_once_s": at_once}
    print(file_result("sweep", result | {"goals": plain_goals(goals)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
