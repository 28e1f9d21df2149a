"""`bitring train`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolkit import config as configs
from toolkit.comm.ledger import ByteKey
from toolkit.comm.world import World, on_root
from toolkit.commands.common import in_job, log, read_config
from toolkit.errors import UserError
from toolkit.graph import cache


def run(args: argparse.Namespace) -> int:
    if args.seeds < 1:
        raise UserError(f"--seeds is {args.seeds}; give a number >= 1")
    config = read_config(args)
    return in_job(args, config, lambda world: train(world, config, args))


def train(world: World, config: configs.Config, args: argparse.Namespace) -> int:
    """Train on every rank from each seed; rank 0 records and prints."""
    from simulator import workload as workloads
    from toolkit.train.loop import train_seed
    from toolkit.train.process import prepare_process
    from toolkit.train.recorder import RunFolder, default_run_dir
    from toolkit.train.summary import describe, summarise
    from toolkit.train.traced import record_workload
    from toolkit.train.trainer import make_transport

    threads = prepare_process(world, config.train.threads)
    partition = on_root(world, lambda: cache.ensure(config, world.size, log.info))
    notes: list[str] = partition.meta["graph"]["notes"]
    part = partition.load(world.rank)
    transport = make_transport(world, config.method)
    path = Path(args.run_dir) if args.run_dir else default_run_dir(config.run)
    folder: RunFolder | None = None

    def open_folder() -> None:  # last: what is refused before leaves no folder behind
        nonlocal folder
        folder = RunFolder(path, config, world.size, notes)

    on_root(world, open_folder)
    results = []
    for seed in range(config.run.seed, config.run.seed + args.seeds):
        trained = train_seed(part, config, world, transport, seed, folder)
        results.append(trained.result)
        sent = world.gather(trained.trainer.ledger.sent)
        if folder is not None and sent is not None:
            folder.write("seed", **dataclasses.asdict(trained.result))
            for (phase, layer, direction), per_channel in bytes_per_channel(sent).items():
                folder.write("bytes", seed=seed, phase=phase, layer=layer, direction=direction, sent_bytes=per_channel)
    workload = record_workload(trained.trainer, world, trained.seconds, notes)
    transport.close()
    if folder is not None and workload is not None:
        with folder.guarded():
            workloads.save(workload, folder.path / "workload.npz")
        folder.write("summary", **summarise(results))
        folder.close()
        print(describe(config, partition, results, world.size, threads, folder.path))
    if not all(result.replicas_agree for result in results):
        raise RuntimeError("the ranks' weights differ at the end of training: the reduction gave them different sums")
    return 0


def bytes_per_channel(sent: list[dict[ByteKey, NDArray[np.int64]]]) -> dict[ByteKey, list[list[int]]]:
    """Every rank's counters as [sender][receiver] bytes of the whole run, per phase, layer and direction."""
    return {key: [counts[key].tolist() for counts in sent] for key in sent[0]}
