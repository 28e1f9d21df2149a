"""The plan: per layer and direction, which rows travel, how wide, before or after W, which entries.

A plan is data. It is printed, counted and simulated, and routes and buffers are made from it. It
is computed from the model's widths alone, so all ranks hold the same one without talking.
It needs no torch: `bitring plan` and the simulator's inputs come from here.

The exact plan is the papers' plan less what need not travel, in four independent steps:

    once    layer 0's input rows never change: exchanged once, kept
    kept    the receiver knows the dropout mask: only kept entries travel, both ways
    narrow  where W narrows the row below what would travel, rows travel after W
    needed  a row none of whose targets can influence a training node stays at home (training only)

Every subset gives the same loss and gradients, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit import config as configs
from toolkit import rounding
from toolkit.errors import UserError, nearest
from toolkit.keyed import kept_per_row
from toolkit.rounding import DRAWN_FROM

PassKind = Literal["train", "evaluate"]
STEPS = ("once", "kept", "narrow", "needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Widths of one graph layer as far as communication is concerned."""

    inputs: int  # entries of an input row
    outputs: int  # entries of a row after W (gat: all heads)
    dropout: float  # on the input row


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStep:
    """What one layer exchanges in one kind of pass (training or evaluation)."""

    layer: int
    sends: Literal["nothing", "inputs", "outputs"]  # nothing: halo rows are held already
    width: int  # entries of the whole row
    entries: int  # entries of it that travel
    dropout: float  # on the input row, in this kind of pass
    backward: bool  # error rows travel back
    max_reach: int | None  # rows of a larger reach stay at home; None: all rows travel

    @property
    def kept_only(self) -> bool:
        return self.entries < self.width


RowBytes = Callable[[LayerStep], float]  # bytes of one message of a step


def floats(step: LayerStep) -> float:
    """RowBytes of unquantised float32."""
    return 4 * step.entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One LayerStep per layer, for training and for evaluation."""

    train: tuple[LayerStep, ...]
    evaluate: tuple[LayerStep, ...]


def parse_steps(plan: str) -> frozenset[str]:
    """'exact', 'paper' or a '+'-joined list -> the steps it takes."""
    if plan == "exact":
        return frozenset(STEPS)
    if plan == "paper":
        return frozenset()
    names = plan.split("+")
    for name in names:
        if name not in STEPS:
            raise UserError(
                f"method.plan is {plan!r}; {name!r} is no step: {nearest(name, (*STEPS, 'exact', 'paper'))}"
            )
    return frozenset(names)


def layer_shapes(model: configs.Model, num_features: int, num_classes: int) -> tuple[LayerShape, ...]:
    """Widths of every layer of a model on a graph."""
    widths = [num_features] + [model.hidden] * (model.layers - 1)
    last = num_classes * (model.out_heads if model.kind == "gat" else 1)
    return tuple(
        LayerShape(
            inputs=width,
            outputs=model.hidden if layer < model.layers - 1 else last,
            dropout=model.dropout if layer else model.input_dropout,
        )
        for layer, width in enumerate(widths)
    )


def make_plan(shapes: Sequence[LayerShape], steps: frozenset[str]) -> Plan:
    """The plan that takes ``steps`` away from what the papers send."""
    return Plan(
        train=tuple(_layer_step(shapes, layer, steps, training=True) for layer in range(len(shapes))),
        evaluate=tuple(_layer_step(shapes, layer, steps, training=False) for layer in range(len(shapes))),
    )


def plan_of(config: configs.Config, num_features: int, num_classes: int) -> Plan:
    """The plan of a configuration on a graph of these widths.

    Batch normalisation mixes all rows, so every row reaches the loss: `needed` prunes nothing then.
    """
    return make_plan(layer_shapes(config.model, num_features, num_classes), steps_of(config))


def steps_of(config: configs.Config) -> frozenset[str]:
    """The steps that a configuration's plan takes."""
    steps = parse_steps(config.method.plan)
    return steps - {"needed"} if config.model.norm == "batch" else steps


def by_codec(method: configs.Method, kind: PassKind, layer: int) -> bool:
    """Whether a layer's rows go by the method's codec; else they go exactly.

    Evaluation decides, and goes exactly; so do layer 0's rows where they would be quantised, which are the
    features; unless that is asked for.
    """
    if method.codec == "quantised":
        return method.quantise_all or (kind == "train" and layer > 0)
    return kind == "train"


def message_bytes(config: configs.Config, kind: PassKind, step: LayerStep) -> float:
    """Bytes of one message of a step; where widths are drawn, on average; adaptive ones, in the first period.

    Evaluation is exact whatever the codec; float32 is as wide as the arithmetic.
    """
    method = config.method
    coded = by_codec(method, kind, step.layer)
    if coded and method.codec == "quantised":
        widths = {"uniform": DRAWN_FROM, "adaptive": (8,), "fixed": (method.bits,)}[method.widths]
        return sum(rounding.message_bytes(step.entries, bits) for bits in widths) / len(widths)
    if coded and method.codec == "bfloat16":
        return 2 * step.entries
    return (8 if config.train.dtype == "float64" else 4) * step.entries


def _layer_step(shapes: Sequence[LayerShape], layer: int, steps: frozenset[str], *, training: bool) -> LayerStep:
    shape = shapes[layer]
    dropout = shape.dropout if training else 0.0
    held = layer == 0 and "once" in steps
    kept = kept_per_row(shape.inputs, dropout) if "kept" in steps else shape.inputs
    # layer 0's inputs have no errors to send back; rows after W do, so there it costs twice
    ways = 2 if training and layer == 0 else 1
    narrow = not held and "narrow" in steps and shape.outputs * ways < kept
    return LayerStep(
        layer=layer,
        sends="nothing" if held else "outputs" if narrow else "inputs",
        width=shape.outputs if narrow else shape.inputs,
        entries=shape.outputs if narrow else shape.inputs if held else kept,
        dropout=dropout,
        backward=training and not held and (layer > 0 or narrow),
        max_reach=len(shapes) - 1 - layer if training and not held and "needed" in steps else None,
    )


def bytes_by_reach(plan: Plan, row_bytes: RowBytes) -> NDArray[np.float64]:
    """Bytes that a message of reach 0, 1, .. L costs in a training epoch: [L + 1], the last for all farther."""
    reach = np.arange(len(plan.train) + 1)
    total = np.zeros(len(reach))
    for step in plan.train:
        if step.sends != "nothing":
            travels = np.ones(len(reach), dtype=np.bool_) if step.max_reach is None else reach <= step.max_reach
            total += travels * (row_bytes(step) * (2 if step.backward else 1))
    return total


def travelling(reach: NDArray[np.int16], step: LayerStep) -> NDArray[np.bool_]:
    """Which of the rows with these reaches travel in ``step``."""
    if step.sends == "nothing":
        return np.zeros(len(reach), dtype=np.bool_)
    if step.max_reach is None:
        return np.ones(len(reach), dtype=np.bool_)
    mask: NDArray[np.bool_] = reach <= step.max_reach
    return mask
