"""Test accuracy at best validation on the public Planetoid splits, over ranks and seeds.

    python -m bench.accuracy [--ranks 4] [--seeds 10] [cora citeseer pubmed]

GCN 2 x 16 with the published settings (Kipf and Welling 2017): examples/cora.toml for all three.
Published: Cora 81.5, Citeseer 70.3, Pubmed 79.0. Needs $BITRING_DATA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.common import file_result, machine
from toolkit import report

ROOT = Path(__file__).parent.parent
GOALS = {"cora": 81.0, "citeseer": 69.8, "pubmed": 78.5}
PUBLISHED = {"cora": 81.5, "citeseer": 70.3, "pubmed": 79.0}


def measure(name: str, ranks: int, seeds: int, overrides: list[str]) -> dict[str, Any]:
    """Train one data set from all seeds; mean and sample deviation in per cent."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "toolkit.cli", "train", str(ROOT / "examples" / "cora.toml")]
        command += [
            "-np",
            str(ranks),
            "--seeds",
            str(seeds),
            "--run-dir",
            f"{folder}/run",
            "--set",
            f"data.name={name}",
        ]
        for override in overrides:
            command += ["--set", override]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    summary = lines[-1]
    return {
        "graph": name,
        "test_accuracy_mean_percent": 100 * summary["test_accuracy_mean"],
        "test_accuracy_deviation_percent": 100 * summary["test_accuracy_deviation"],
        "per_seed_percent": [
            100 * line["best"]["scores"]["test"]["accuracy"] for line in lines if line["kind"] == "seed"
        ],
        "goal_percent": GOALS[name],
        "published_percent": PUBLISHED[name],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(GOALS), metavar="NAME")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    args = parser.parse_args()
    results = [measure(name, args.ranks, args.seeds, args.set) for name in args.names]
    path = file_result(
        f"accuracy-{'-'.join(args.names)}",
        {"ranks": args.ranks, "seeds": args.seeds, "set": args.set, "results": results},
    )
    rows = [
        [
            r["graph"],
            f"{r['test_accuracy_mean_percent']:.2f} +- {r['test_accuracy_deviation_percent']:.2f}",
            f"{r['goal_percent']:.1f}",
            f"{r['published_percent']:.1f}",
            "met" if r["test_accuracy_mean_percent"] >= r["goal_percent"] else "MISSED",
        ]
        for r in results
    ]
    print(f"GCN 2 x 16, public split, {args.ranks} ranks, {args.seeds} seeds, {machine()['date']}")
    print(report.table(rows, ["graph", "test accuracy, %", "goal", "published", ""]))
    print(path)
    return 0 if all(r["test_accuracy_mean_percent"] >= r["goal_percent"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
