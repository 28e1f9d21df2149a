"""`bitring noise`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from toolkit import config as configs
from toolkit import methods, report
from toolkit.comm.world import World, on_root
from toolkit.commands.common import in_job, log, read_config
from toolkit.errors import UserError
from toolkit.graph import cache

if TYPE_CHECKING:
    from toolkit.train.noise import LayerNoise
    from toolkit.train.rounded import RowNoise

HEADER = ["layer", "codec", "dropout", "codec / dropout", "bias"]
ROW_HEADER = ["layer", "direction", "messages", "measured", "bound", "measured / bound"]


def run(args: argparse.Namespace) -> int:
    for name, value, least in (("--after", args.after, 0), ("--draws", args.draws, 2)):
        if value < least:
            raise UserError(f"{name} is {value}; give a number >= {least}")
    config = read_config(args)
    if not config.method.lossy:
        raise UserError(
            f"the codec, {methods.codec_text(config.method)}, adds no noise; "
            "set method.codec=quantised with method.bits below 32, or bfloat16"
        )
    method = config.method
    chosen_after = method.period + min(method.lead, method.period)
    if method.widths == "adaptive" and args.after < chosen_after:
        raise UserError(
            f"--after is {args.after}, and widths are chosen for the first time after {chosen_after} epochs "
            f"(method.period {method.period}, method.lead {method.lead}); give more epochs or a shorter period"
        )
    return in_job(args, config, lambda world: noise(world, config, args))


def noise(world: World, config: configs.Config, args: argparse.Namespace) -> int:
    """Train a while, then print the codec's noise beside the dropout's."""
    from toolkit.train.noise import measure
    from toolkit.train.process import prepare_process
    from toolkit.train.trainer import Trainer, make_transport

    if world.size == 1:
        raise UserError("one rank sends nothing, so there is no noise; give -np 2 or more")
    prepare_process(world, config.train.threads)
    part = on_root(world, lambda: cache.ensure(config, world.size, log.info)).load(world.rank)
    transport = make_transport(world, config.method)
    trainer = Trainer(part, config, world, transport)
    for epoch in range(args.after):
        trainer.step(epoch)
    found = measure(trainer, args.after, args.draws)
    transport.close()
    if world.rank == 0:
        print(json.dumps([dataclasses.asdict(one) for one in found]) if args.json else describe(found, config, args))
    return 0


def describe(found: list[LayerNoise], config: configs.Config, args: argparse.Namespace) -> str:
    """The table, and what it means."""
    rows = [
        [
            _layer_text(one),
            f"{one.codec:.2e}",
            f"{one.dropout:.2e}",
            f"{one.codec / one.dropout:.4f}" if one.dropout else "-",
            f"{one.bias:.2f}" if one.codec else "-",
        ]
        for one in found
    ]
    return (
        f"Relative squared error of the weight gradients after {args.after} epochs, "
        f"{methods.codec_text(config.method)}, "
        f"{config.method.plan} plan, {args.draws} draws.\n"
        "dropout: what another mask would change, halved; bias: near 1 where errors average out, "
        f"near {args.draws} where they don't "
        f"(a ReLU near its kink: half of that).\n\n" + report.table(rows, HEADER) + describe_rows(found)
    )


def describe_rows(found: list[LayerNoise]) -> str:
    """The table of the rows themselves; nothing where none is quantised."""
    rows = [
        _of_rows(_layer_text(one), direction, noise)
        for one in found
        for direction, noise in (("forward", one.forward), ("backward", one.backward))
        if noise is not None
    ]
    if not rows:
        return ""
    return (
        "\n\nVariance that rounding adds to what the ranks aggregate, summed over rows and entries; the same draws.\n"
        "bound: of rows whose entries lie anywhere between two codes (AdaQP, Theorems 1 and 3).\n\n"
        + report.table(rows, ROW_HEADER)
    )


def _of_rows(layer: str, direction: str, noise: RowNoise) -> list[str]:
    ratio = f"{noise.measured / noise.bound:.3f}" if noise.bound else "-"
    return [layer, direction, f"{noise.messages:,}", f"{noise.measured:.3e}", f"{noise.bound:.3e}", ratio]


def _layer_text(one: LayerNoise) -> str:
    return "all" if one.layer < 0 else str(one.layer)
