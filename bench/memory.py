"""Peak memory of a rank over the number of ranks, on a generated graph; and what partitioning it costs.

    python -m bench.memory [--nodes 1000000] [--edges 10000000] [--features 128] [--ranks 1 2 4 8]

Partitioning runs in a process of its own (it holds the whole graph); every rank then loads its part
alone and trains two epochs of a 3 x 64 GCN. The graph: 64 communities, 5 % of the edges drawn
regardless of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.common import file_result
from toolkit import config as configs
from toolkit import launch, report


def configuration(args: dict[str, Any]) -> configs.Config:
    return configs.Config(
        data=configs.Data(
            name="sbm",
            nodes=args["nodes"],
            edges=args["edges"],
            features=args["features"],
            split="ratio",
            classes=64,
            mixing=0.05,
        ),
        partition=configs.Partition(tries=1, numbering="identity", cache=args["cache"]),
        model=configs.Model(layers=3, hidden=64, norm="layer"),
        train=configs.Train(threads=1),
    )


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def partition(args: dict[str, Any], ranks: int) -> None:
    """In a process of its own: generate, partition, write."""
    from toolkit.graph import cache

    begin = time.perf_counter()
    stages: list[tuple[str, float]] = []
    cache.ensure(configuration(args), ranks, lambda text: stages.append((text, time.perf_counter() - begin)))
    seconds = time.perf_counter() - begin
    folder = cache.ensure(configuration(args), ranks).folder
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(json.dumps({"seconds": seconds, "generate_s": stages[1][1], "peak_bytes": peak_bytes(), "disk_bytes": size}))


def rank(args: dict[str, Any]) -> None:
    """One rank: load, train two epochs, tell."""
    begin = time.perf_counter()
    from toolkit.comm.world import MpiWorld
    from toolkit.graph import cache
    from toolkit.train.process import prepare_process
    from toolkit.train.trainer import Trainer, make_transport

    world, config = MpiWorld(), configuration(args)
    prepare_process(world, 1)
    imported_s = time.perf_counter() - begin
    part = cache.ensure(config, world.size).load(world.rank)
    loaded_s = time.perf_counter() - begin
    trainer = Trainer(part, config, world, make_transport(world, config.method))
    ready_s = time.perf_counter() - begin
    for epoch in range(2):
        trainer.step(epoch)
    start = {"import_s": imported_s, "load_s": loaded_s - imported_s, "prepare_s": ready_s - loaded_s}
    told = world.gather({"peak_bytes": peak_bytes(), "inner": part.num_inner, "halo": part.num_halo, **start})
    if world.rank == 0:
        Path(args["out"]).write_text(json.dumps(told))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    args = vars(parser.parse_args())
    results, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        args |= {"cache": f"{folder}/cache", "out": f"{folder}/out.json"}
        for ranks in args["ranks"]:
            command = [sys.executable, "-m", "bench.memory", "--partition", str(ranks), json.dumps(args)]
            made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            code = launch.launch(["--rank", json.dumps(args)], ranks, "mpirun", module="bench.memory")
            if code:
                return code
            told = json.loads(Path(args["out"]).read_text())
            peak = max(r["peak_bytes"] for r in told)
            results.append({"ranks": ranks, "partition": made, "rank": told})
            rows.append(
                [
                    str(ranks),
                    report.num_bytes(peak),
                    f"{max(r['halo'] for r in told):,}",
                    report.seconds(made["seconds"] - made["generate_s"]),
                    report.num_bytes(made["peak_bytes"]),
                    *(report.seconds(max(r[key] for r in told)) for key in ("import_s", "load_s", "prepare_s")),
                ]
            )
            print(report.table(rows[-1:]), flush=True)
    header = ["ranks", "peak of a rank", "halo rows", "partition", "its peak", "import", "load", "prepare"]
    print(report.table(rows, header))
    print(file_result("memory", {key: args[key] for key in ("nodes", "edges", "features")} | {"results": results}))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--partition"]:
        partition(json.loads(sys.argv[3]), int(sys.argv[2]))
    elif sys.argv[1:2] == ["--rank"]:
        rank(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
