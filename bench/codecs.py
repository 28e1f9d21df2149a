"""Accuracy and gradient noise of every codec, on real graphs.

    python -m bench.codecs [--ranks 4] [--seeds 5] [cora pubmed amazon_computers coauthor_physics]

Test accuracy at best validation, mean and sample deviation over seeds, under the exact plan: float32,
bfloat16, 8, 4, 2 bits, 1 bit, widths drawn from 2, 4, 8. Beside it what `bitring noise` measures: the relative
squared error that the codec adds to the weight gradients, and dropout's. Cora and Pubmed: GCN 2 x 16 on the
public splits (examples/cora.toml); the others: GCN 3 x 64, LayerNorm, 60 % training nodes, 100 epochs.
One file a graph. Needs $BITRING_DATA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.common import file_result
from toolkit import report

ROOT = Path(__file__).parent.parent
GRAPHS = ("cora", "pubmed", "amazon_computers", "coauthor_physics")
QUANTISED = "method.codec=quantised"
CODECS = {
    "float32": [],
    "bfloat16": ["method.codec=bfloat16"],
    "8 bits": [QUANTISED, "method.bits=8"],
    "4 bits": [QUANTISED, "method.bits=4"],
    "2 bits": [QUANTISED, "method.bits=2"],
    "1 bit": [QUANTISED, "method.bits=1"],
    "drawn from 2, 4, 8": [QUANTISED, "method.widths=uniform"],
}
LARGER = [
    "data.split=ratio", "data.feature_norm=none", "model.layers=3", "model.hidden=64", "model.norm=layer",
    "model.input_dropout=0", "train.weight_decay=0", "train.epochs=100", "train.eval_every=4",
]  # fmt: skip


def settings(graph: str) -> list[str]:
    extra = [] if graph in ("cora", "pubmed") else LARGER
    return [f"data.name={graph}", "train.threads=1", *extra, *(["data.project_to=602"] if "coauthor" in graph else [])]


def command(name: str, ranks: int, overrides: list[str], *more: str) -> list[str]:
    line = [sys.executable, "-m", "toolkit.cli", name, str(ROOT / "examples" / "cora.toml"), "-np", str(ranks), *more]
    line += ["--launcher", "mpirun"]
    return line + [word for override in overrides for word in ("--set", override)]


def accuracy(ranks: int, seeds: int, overrides: list[str]) -> dict[str, Any]:
    """Mean, sample deviation (per cent) and bytes an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        run = command("train", ranks, overrides, "--seeds", str(seeds), "--run-dir", f"{folder}/run")
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    seeds_told = [line for line in lines if line["kind"] == "seed"]
    return {
        "mean_percent": 100 * lines[-1]["test_accuracy_mean"],
        "deviation_percent": 100 * lines[-1]["test_accuracy_deviation"],
        "per_seed_percent": [100 * line["best"]["scores"]["test"]["accuracy"] for line in seeds_told],
        "train_bytes": seeds_told[-1]["train_bytes"],
    }


def noise(ranks: int, overrides: list[str]) -> dict[str, Any]:
    """The last line of `bitring noise`: all layers together."""
    run = command("noise", ranks, overrides, "--json")
    told = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(told)[-1]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(GRAPHS), metavar="NAME")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    args = parser.parse_args()
    for graph in args.names:
        results: list[dict[str, Any]] = []
        rows = []
        for name in args.codecs:
            overrides = CODECS[name]
            told = accuracy(args.ranks, args.seeds, settings(graph) + overrides)
            measured = noise(args.ranks, settings(graph) + overrides) if overrides else None
            results.append({"graph": graph, "codec": name, "accuracy": told, "noise": measured})
            mean = told["mean_percent"]
            base = results[0]["accuracy"]["mean_percent"]
            rows.append(
                [
                    name,
                    f"{mean:.2f} +- {told['deviation_percent']:.2f}",
                    f"{mean - base:+.2f}",
                    report.num_bytes(told["train_bytes"]),
                    "0" if measured is None else f"{measured['codec']:.1e}",
                    "-" if measured is None else f"{measured['dropout']:.2f}",
                ]
            )
        print(f"\n{graph}, {args.ranks} ranks, {args.seeds} seeds")
        header = ["codec", "test accuracy, %", "points", "rows an epoch", "gradient noise", "dropout's"]
        print(report.table(rows, header), flush=True)
        print(file_result(f"codecs-{graph}", {"ranks": args.ranks, "seeds": args.seeds, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
