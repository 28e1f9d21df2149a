"""`bitring train`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toolkit import config as configs
from toolkit import launch
from toolkit.comm.ledger import ByteKey
from toolkit.comm.world import World, on_root
from toolkit.commands.common import in_job, log, read_config
from toolkit.errors import UserError
from toolkit.graph import cache

if TYPE_CHECKING:
    from toolkit.train.recorder import RunFolder
    from toolkit.train.state import Identity, State


def run(args: argparse.Namespace) -> int:
    if args.seeds is not None and args.seeds < 1:
        raise UserError(f"--seeds is {args.seeds}; give a number >= 1")
    if args.resume:
        _take_from_run(args)
    elif args.config is None:
        raise UserError("no configuration; name a CONFIG.toml, or the folder of a run to continue with --resume")
    config = read_config(args)
    return in_job(args, config, lambda world: train(world, config, args), grace_s=config.run.grace_s)


def _take_from_run(args: argparse.Namespace) -> None:
    """What the command line leaves out, the run folder tells: the configuration, and how many ranks to start."""
    folder = Path(args.resume)
    if args.run_dir:
        raise UserError(
            f"--run-dir {args.run_dir} and --resume {folder}: a run continues in its own folder; leave one out"
        )
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}; name one with --resume")
    args.config = args.config or str(folder / "config.toml")
    if args.ranks is None and launch.job_size() is None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            args.ranks = int(json.loads((folder / "run.json").read_text(encoding="utf-8"))["ranks"])


def train(world: World, config: configs.Config, args: argparse.Namespace) -> int:
    """Train on every rank from each seed, or go on where a run was; rank 0 records and prints."""
    from toolkit.train.process import Stopped
    from toolkit.train.recorder import default_run_dir

    path = Path(args.resume or args.run_dir or default_run_dir(config.run))
    with contextlib.ExitStack() as stack:
        try:
            return _train(world, config, args, path, stack)
        except Stopped as stopped:
            log.info("%s: the epoch is finished and saved; continue with --resume %s", stopped, path)
            return 128 + stopped.number


def _train(
    world: World, config: configs.Config, args: argparse.Namespace, path: Path, stack: contextlib.ExitStack
) -> int:
    from simulator import workload as workloads
    from toolkit.train.adaptive import Adaptive
    from toolkit.train.keeper import Keeper
    from toolkit.train.loop import SeedResult, train_seed
    from toolkit.train.prices import described
    from toolkit.train.process import prepare_process
    from toolkit.train.recorder import RunFolder
    from toolkit.train.state import Identity
    from toolkit.train.summary import describe, summarise
    from toolkit.train.traced import record_workload
    from toolkit.train.trainer import make_transport

    folder: RunFolder | None = None
    start: State | None = None
    if args.resume:
        folder, start = _reopen(world, config, args, path, stack)
        if start is None:
            log.info("the run in %s is complete; a larger train.epochs or --seeds would go on", path)
            return 0
    threads = prepare_process(world, config.train.threads)
    if config.method.quantise_all:
        log.warning("layer 0 and evaluation are quantised too: this costs accuracy, and is there to compare with")
    partition = on_root(world, lambda: cache.ensure(config, world.size, log.info))
    notes: list[str] = partition.meta["graph"]["notes"]
    part = partition.load(world.rank)
    transport = make_transport(world, config.method)
    identity = Identity.of(config, partition, world.size)
    if config.method.widths == "adaptive" and config.method.machine and world.size > 1:
        on_root(world, lambda: described(config.method.machine, world.size))
    seeds = args.seeds or (start.header["seeds"] if start is not None else 1)

    def open_folder() -> None:  # last: what is refused before leaves no folder behind
        nonlocal folder
        if folder is None:
            folder = RunFolder(path, config, world.size, notes)
            stack.callback(folder.close)
        elif start is not None:
            _go_on(folder, start, identity)

    on_root(world, open_folder)
    keeper = Keeper(world, identity, folder, seeds, start)
    stack.enter_context(keeper.requests)
    results = [SeedResult.of_plain(plain) for plain in keeper.results]
    before: Adaptive | None = None  # the costs that it measured serve every seed
    for seed in range(config.run.seed + len(results), config.run.seed + seeds):
        trained = train_seed(part, config, world, transport, seed, folder, keeper, before)
        before = trained.trainer.adaptive
        results.append(trained.result)
        keeper.results.append(dataclasses.asdict(trained.result))
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
        print(describe(config, partition, results, world.size, threads, folder.path))
    if not all(result.replicas_agree for result in results):
        raise RuntimeError("the ranks' weights differ at the end of training: the reduction gave them different sums")
    return 0


def _reopen(
    world: World, config: configs.Config, args: argparse.Namespace, path: Path, stack: contextlib.ExitStack
) -> tuple[RunFolder | None, State | None]:
    """The folder (at rank 0) and the state to go on from, None for a complete run. Refused where they don't fit."""
    from toolkit.train import state as states
    from toolkit.train.recorder import RunFolder, is_finished

    folder: RunFolder | None = None

    def read() -> State | None:
        nonlocal folder
        folder = RunFolder.reopen(path)
        stack.callback(folder.close)
        state = states.newest(path, log.warning)
        states.check_config(state, config, path)
        longer = states.check_length(state, config, args.seeds, path)
        return None if is_finished(path) and not longer else state

    start = on_root(world, read)
    return folder, start


def _go_on(folder: RunFolder, start: State, identity: Identity) -> None:
    from toolkit.train import state as states

    states.check_graph(start, identity, folder.path)
    folder.go_on(identity.config, identity.ranks, start.epochs, start.header["metrics_bytes"])
    log.info("continuing after %d epochs", start.epochs)
    if start.header["ranks"] != identity.ranks:
        log.info(
            "the run had %d ranks and goes on over %d: sums differ in their last bits, and bytes are counted anew",
            start.header["ranks"],
            identity.ranks,
        )


def bytes_per_channel(sent: list[dict[ByteKey, NDArray[np.int64]]]) -> dict[ByteKey, list[list[int]]]:
    """Every rank's counters as [sender][receiver] bytes of the whole run, per phase, layer and direction."""
    return {key: [counts[key].tolist() for counts in sent] for key in sent[0]}
