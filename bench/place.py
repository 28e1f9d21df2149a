"""What numbering the parts is worth: real graphs, METIS's seeds, every semantics of the ring.

    python -m bench.place [--graphs cora amazon_computers coauthor_physics] [--ranks 4 8 16] [--seeds 4]

GCN 3 x 64, dropout 0.5, the exact plan in float32; each seed's partition as METIS numbers it. Every pair takes
100 Mbit/s and 100 us, a rank's messages one after another. Judged by the rings of an epoch, messages alone
(simulator/placement.py); up to 7 ranks all numberings, above that a local search. Shares of the first seed's time as
METIS numbers it:

    by bytes     the first seed under the numbering that training takes (least bytes in the ring's slowest channels)
    numbered     the first seed under the best numbering found here
    best seed    the fastest of the seeds as METIS numbers them
    both         the fastest of the seeds, each under its best numbering
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from typing import Any

import numpy as np

from bench.common import file_result
from simulator.cost import PairCosts
from simulator.maxplus import SEMANTICS, Semantics
from simulator.placement import Judge, place_seeds
from simulator.wire import Wire
from toolkit import config as configs
from toolkit import plan as planning
from toolkit import report
from toolkit.graph import cache
from toolkit.graph.partition import best_numbering
from toolkit.traffic import flows

THETA, GAMMA = 8 / 1e8, 1e-4
MODEL = {"kind": "gcn", "layers": 3, "hidden": 64, "norm": "layer"}


def exchanges(graph: str, ranks: int, seed: int, folder: str) -> tuple[np.ndarray[Any, Any], ...]:
    """Bytes [N, N] of each exchange of a training epoch."""
    partitioned = {"seed": seed, "tries": 1, "numbering": "identity", "cache": folder}
    config = configs.from_tables({"data": {"name": graph}, "model": MODEL, "partition": partitioned})
    partition = cache.ensure(config, ranks)
    shape = partition.meta["graph"]
    plan = planning.plan_of(config, shape["features"], shape["classes"])
    sent = flows(plan.train, partition.channels, partial(planning.message_bytes, config, "train"))
    return tuple(flow.num_bytes for flow in sent if flow.num_bytes.any())


def measure(graph: str, ranks: int, seeds: int, semantics: Semantics, folder: str) -> dict[str, Any]:
    pairs = np.ones((ranks, ranks))
    wire = Wire(
        network=PairCosts(theta_s_per_byte=THETA * pairs, gamma_s=GAMMA * pairs), semantics=semantics, links="shared"
    )
    judges = [Judge(num_bytes=exchanges(graph, ranks, seed, folder), wire=wire) for seed in range(seeds)]
    kept, placed = place_seeds(judges)
    by_bytes = np.argsort(best_numbering(np.sum(judges[0].num_bytes, axis=0).astype(np.float64)))
    return {
        "graph": graph,
        "ranks": ranks,
        "semantics": semantics,
        "first_s": placed[0].identity_s,
        "by_bytes_s": float(judges[0].seconds(by_bytes[None, :])[0]),
        "numbered_s": placed[0].seconds,
        "best_seed_s": min(one.identity_s for one in placed),
        "both_s": placed[kept].seconds,
        "kept_seed": kept,
        "evaluations": sum(one.evaluations for one in placed),
        "how": placed[kept].how,
    }


def line(row: dict[str, Any]) -> list[str]:
    shares = (row[f"{name}_s"] / row["first_s"] for name in ("by_bytes", "numbered", "best_seed", "both"))
    return [
        f"{row['graph']}, {row['ranks']} ranks, {row['semantics']}",
        report.seconds(row["first_s"]),
        *(f"{share:.3f}" for share in shares),
        f"{row['evaluations']:,}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["cora", "amazon_computers", "coauthor_physics"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for graph in args.graphs:
            for ranks in args.ranks:
                rows += [measure(graph, ranks, args.seeds, semantics, folder) for semantics in SEMANTICS]
    header = ["rings of an epoch", "METIS, seed 0", "by bytes", "numbered", "best seed", "both", "tried"]
    print(report.table([line(row) for row in rows], header))
    setting = {"seeds": args.seeds, "theta_s_per_byte": THETA, "gamma_s": GAMMA}
    print(file_result("place", setting | {"results": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
