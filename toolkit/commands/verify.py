"""`bitring verify`."""

from __future__ import annotations

import argparse
import dataclasses
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
    if config.method.codec == "quantised" and config.method.lossy:
        raise UserError(
            "method.codec quantised adds noise on purpose: `bitring noise` measures it; "
            "verify takes float32, or quantised with method.bits = 32"
        )
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
    graph = registry.load(config) if world.rank == 0 else None

    def attempt(config: configs.Config) -> Verification | None:
        log.info("%d steps in %s: %d rank%s", steps, config.train.dtype, world.size, "s" if world.size > 1 else "")
        ours = follow(part, config, world, transport, steps)
        if graph is None:
            return None
        log.info("the same steps in one process")
        return compare(ours, single_process(graph, config, steps), config, part, steps)

    result = attempt(config)
    limit = TOLERANCE[config.train.dtype] if tolerance is None else tolerance
    # Training enlarges rounding, more in some configurations than in others. Where the gradients agree
    # and the weights drift apart in float32, the same steps in float64 tell rounding from error.
    enlarged = result is not None and result.gradients <= limit < result.largest
    decided = None
    if world.broadcast(enlarged) and config.train.dtype == "float32" and config.method.codec == "float32":
        wide = dataclasses.replace(config, train=dataclasses.replace(config.train, dtype="float64"))
        decided = attempt(wide)
    transport.close()
    passed = False
    if result is not None:
        passed = result.largest <= limit or (decided is not None and decided.largest <= TOLERANCE["float64"])
        print(describe(result, limit, decided))
    return 0 if world.broadcast(passed) else 1


def describe(result: Verification, limit: float, decided: Verification | None) -> str:
    """What was compared and by how much it differs, for people."""
    pairs = [
        ("loss", f"{result.loss:.2e} relative difference, largest of {result.steps} steps"),
        ("gradients", f"{result.gradients:.2e} at step 1, largest in {result.worst_gradient}"),
        ("weights", f"{result.weights:.2e} after {result.steps} steps, largest in {result.worst_weight}"),
        ("", f"no single weight by more than {result.weight_entry:.1e}"),
    ]
    equal = result.largest <= limit
    verdict = f"{result.largest:.2e} against a tolerance of {limit:.0e}"
    if decided is not None:
        equal = decided.largest <= TOLERANCE["float64"]
        pairs.append(("in float64", f"{decided.largest:.2e} largest of all, against {TOLERANCE['float64']:.0e}"))
        verdict = "gradients agree; the drift of weights in float32 is " + ("rounding" if equal else "no rounding")
    return report.facts([*pairs, ("verdict", f"{'equal' if equal else 'DIFFERENT'}: {verdict}")])
