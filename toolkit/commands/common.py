"""What the commands that need ranks share: the configuration, and joining or starting a job."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from toolkit import config as configs
from toolkit import launch, methods
from toolkit import plan as planning
from toolkit.comm.watch import watching
from toolkit.comm.world import MpiWorld, Solo, World
from toolkit.errors import UserError
from toolkit.graph import cache

log = logging.getLogger("bitring")


def read_config(args: argparse.Namespace) -> configs.Config:
    """The configuration of a command line, everything checked that needs no data."""
    config = configs.load(args.config, args.set)
    methods.lookup(config.method)
    planning.parse_steps(config.method.plan)
    return config


def in_job(args: argparse.Namespace, config: configs.Config, body: Callable[[World], int], grace_s: float = 0.0) -> int:
    """Run ``body`` on every rank: join the job that we were started in, or start one of ``-np`` ranks.

    The partition is made before ranks are started: a refusal then costs a second, not a job. ``grace_s``:
    how long after SIGTERM the ranks that we start may take to end by themselves.
    """
    check_ranks(args.ranks)
    launch.refuse_gloo()
    size = launch.job_size()
    if size is None:
        check_device(config, Solo())
    if size is None and (args.ranks or 1) > 1:
        if not Path(args.config).is_file():
            raise UserError(f"{args.config} is no regular file, and every rank reads it; save it to one first")
        start_logging(rank=0, size=1)
        cache.ensure(config, args.ranks, log.info)
        return launch.launch(args.argv, args.ranks, args.launcher, grace_s=grace_s)
    if size is None:
        start_logging(rank=0, size=1)
        return body(Solo())
    if args.ranks not in (None, size):
        raise UserError(f"-np {args.ranks} inside an MPI job of {size} ranks; leave -np out, or start without mpirun")
    launch.install_excepthook()
    world = MpiWorld()
    start_logging(world.rank, world.size)
    with watching(world, config.run.timeout_s):
        check_device(config, world)
        return body(world)


def check_device(config: configs.Config, world: World) -> None:
    """UserError on every rank where a GPU is asked for and one of them has none. Collective."""
    if config.train.device != "cpu":
        from toolkit.comm import device  # imports torch

        device.check(world)


def check_ranks(ranks: int | None) -> None:
    if ranks is not None and ranks < 1:
        raise UserError(f"-np is {ranks}; give a number of ranks >= 1")


def start_logging(rank: int, size: int) -> None:
    """Rank 0 tells what it does; the others speak up when something is wrong."""
    prefix = f"[rank {rank}] " if size > 1 and rank else ""
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format=prefix + "%(message)s",
        stream=sys.stderr,
        force=True,
    )
