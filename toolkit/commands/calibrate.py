"""`bitring calibrate`."""

from __future__ import annotations

import argparse
import platform
from functools import partial
from pathlib import Path

import numpy as np

from simulator.cost import Fit
from toolkit import config as configs
from toolkit import plan as planning
from toolkit import report
from toolkit.comm.world import MpiWorld, World, on_root
from toolkit.commands.common import in_job, log, read_config
from toolkit.errors import UserError
from toolkit.graph import cache
from toolkit.traffic import flows

MOST_MBIT = 1e6  # a terabit a second: messages of the measured sizes cost the same
WIDEST_TABLE = 8  # ranks


def run(args: argparse.Namespace) -> int:
    config = read_config(args)
    return in_job(args, config, lambda world: calibrate(world, config, Path(args.out)))


def calibrate(world: World, config: configs.Config, out: Path) -> int:
    """Measure every ordered pair in the range of bytes that the configuration sends, and write the costs."""
    from simulator import machine
    from toolkit.comm.calibrate import measure, sizes_between

    if not isinstance(world, MpiWorld) or world.size < 2:
        raise UserError("one rank has nobody to send to; give -np 2 or more")
    partition = on_root(world, lambda: cache.ensure(config, world.size, log.info))
    sizes = sizes_between(*channel_bytes(config, partition))
    log.info("measuring %d pairs at %d sizes", world.size * (world.size - 1), len(sizes))
    fits = measure(world.comm, sizes)
    hosts = world.gather(platform.node())

    def write() -> None:
        assert fits is not None and hosts is not None
        try:
            machine.write(machine.measured(hosts, fits), out)
        except OSError as error:
            raise UserError(f"can't write {out}: {error.strerror}; name another file with --out") from None
        print(describe(fits, world.size, out))

    on_root(world, write)
    return 0


def channel_bytes(config: configs.Config, partition: cache.CachedPartition) -> tuple[int, int]:
    """The shortest and the longest message of a training epoch, in bytes."""
    graph = partition.meta["graph"]
    plan = planning.plan_of(config, graph["features"], graph["classes"])
    sent = [
        flow.num_bytes[flow.num_bytes > 0]
        for flow in flows(plan.train, partition.channels, partial(planning.message_bytes, config, "train"))
    ]
    every = np.concatenate([*sent, np.array([], np.int64)])
    return (int(every.min()), int(every.max())) if len(every) else (1000, 1_000_000)


def describe(fits: dict[tuple[int, int], Fit], n: int, out: Path) -> str:
    """Bandwidth and latency of every pair."""
    from simulator import machine

    costs = machine.measured(["host"] * n, fits).pair_costs()
    apart = ~np.eye(n, dtype=bool)
    residual = max(found.median_residual for found in fits.values())
    notes = [f"pair {s} -> {r}: {text}" for (s, r), found in fits.items() for text in found.warnings()]
    with np.errstate(divide="ignore"):
        mbit = 8e-6 / costs.theta_s_per_byte
    lines = [
        f"{n * (n - 1)} pairs, {report.num_bytes(costs.low_bytes)} to {report.num_bytes(costs.high_bytes)} a message",
        f"bandwidth {_mbit(mbit[apart].min())} to {_mbit(mbit[apart].max())} Mbit/s, latency "
        f"{report.seconds(costs.gamma_s[apart].min())} to {report.seconds(costs.gamma_s[apart].max())}, "
        f"lines miss the measurements by {residual:.1%} at most (median of a pair)",
    ]
    if n <= WIDEST_TABLE:
        body = [[str(s), *("." if s == r else _mbit(mbit[s, r]) for r in range(n))] for s in range(n)]
        lines += [
            "",
            "Mbit/s, from the rank on the left to the rank above:",
            report.table(body, ["", *map(str, range(n))]),
        ]
    return "\n".join([*lines, *notes, str(out)])


def _mbit(value: float) -> str:
    """A line may rise so little that its slope is noise: its messages cost their latency."""
    return f"{value:,.0f}" if value < MOST_MBIT else "beyond measuring"
