"""`bitring verify`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from toolkit import config as configs
from toolkit import report
from toolkit.comm.world import World, on_root
from toolkit.commands.common import in_job, log, read_config
from toolkit.errors import UserError
from toolkit.graph import cache

if TYPE_CHECKING:
    from toolkit.verify import Verification

TOLERANCE = {"float32": 1e-5, "float64": 1e-9}


def run(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise UserError(f"--steps is {args.steps}; give a number >= 1")
    if args.tolerance is not None and not args.tolerance >= 0:
        raise UserError(f"--tolerance is {args.tolerance}; give a number >= 0")
    config = read_config(args)
    return in_job(args, config, lambda world: verify(world, config, args.steps, args.tolerance))


def verify(world: World, config: configs.Config, steps: int, tolerance: float | None) -> int:
    """Compare N ranks with one process; exit code 1 when the largest difference is above the tolerance."""
    from toolkit.graph import registry
    from toolkit.train.process import prepare_process
    from toolkit.train.trainer import make_transport
    from toolkit.verify import compare, follow, single_process

    prepare_process(world, config.train.threads)
    partition = on_root(world, lambda: cache.ensure(config, world.size, log.info))
    part = partition.load(world.rank)
    transport = make_transport(world, config.method)
    log.info("%d steps over %d ranks", steps, world.size)
    ours = follow(part, config, world, transport, steps)
    transport.close()
    passed = False
    if world.rank == 0:
        log.info("the same steps in one process")
        result = compare(ours, single_process(registry.load(config), config, steps), config, part, steps)
        limit = TOLERANCE[config.train.dtype] if tolerance is None else tolerance
        passed = result.largest <= limit
        print(describe(result, limit))
    return 0 if world.broadcast(passed) else 1


def describe(result: Verification, limit: float) -> str:
    """What was compared and by how much it differs, for people."""
    # Adam divides by a gradient's size: where that is all rounding, weights move by whole learning rates
    enlarged = result.weights > limit >= max(result.loss, result.gradients)
    hint = (
        [("", "gradients agree; --set train.optimizer=sgd tells whether Adam only enlarged rounding")]
        if enlarged
        else []
    )
    verdict = "equal" if result.largest <= limit else "DIFFERENT"
    return report.facts(
        [
            ("loss", f"{result.loss:.2e} relative difference, largest of {result.steps} steps"),
            ("gradients", f"{result.gradients:.2e} at step 1, largest in {result.worst_gradient}"),
            ("weights", f"{result.weights:.2e} after {result.steps} steps, largest in {result.worst_weight}"),
            ("", f"no single weight by more than {result.weight_entry:.1e}"),
            *hint,
            ("verdict", f"{verdict}: {result.largest:.2e} against a tolerance of {limit:.0e}"),
        ]
    )
