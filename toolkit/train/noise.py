"""How much noise a codec adds to the weight gradients, beside the noise that dropout brings anyway.

Accuracy is too blunt to compare codecs. The measure is the relative squared error of the weight
gradients against exact communication, at the same weights and the same dropout masks:

    codec    mean over draws of ||g_draw - g||^2 / ||g||^2
    dropout  ||g - g'||^2 / 2 over the mean of ||g||^2 and ||g'||^2, g' under other masks, exact
    bias     ||mean of g_draw - g||^2 / ||g||^2 times the draws, over `codec`: near 1 where errors average
             out, near the number of draws where they do not

Beside it the variance that rounding adds to what each layer aggregates, and its bound (train/rounded.py).

A ReLU near its kink flips in half of the draws however small the noise: with ReLU the error falls with the
step S rather than with S^2 at 8 bits, and its bias is up to half the number of draws. With elu it is 1.

Every rank calls it; the gradients are those summed over ranks, so all get the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.comm.ledger import Direction
from toolkit.train.rounded import RowNoise, measure_rows
from toolkit.train.trainer import Trainer

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNoise:
    """The noise in one layer's weight gradients, and in the rows of its exchanges; layer -1: in all together."""

    layer: int
    codec: float
    dropout: float
    bias: float
    forward: RowNoise | None = None  # None: nothing is rounded there
    backward: RowNoise | None = None


def measure(trainer: Trainer, epoch: int, draws: int = 4) -> list[LayerNoise]:
    """Noise at the trainer's weights under the masks of ``epoch``: one a layer, then of all. Changes nothing."""
    if draws < 1:
        raise ValueError(f"{draws} draws")
    with trainer.aside():
        exact, other = (_gradients(trainer, at, exact=True) for at in (epoch, epoch + 1))
        drawn = [_gradients(trainer, epoch, draw=draw) for draw in range(1, draws + 1)]
    rows = measure_rows(trainer, epoch, draws)

    def of_rows(layer: int, direction: Direction) -> RowNoise | None:
        return RowNoise.together([one for (at, way), one in rows.items() if way == direction and layer in (at, -1)])

    return [
        replace(
            _compare(layer, exact, other, drawn),
            forward=of_rows(layer, "forward"),
            backward=of_rows(layer, "backward"),
        )
        for layer in (*range(len(trainer.network.layers)), -1)
    ]


def _gradients(trainer: Trainer, epoch: int, *, exact: bool = False, draw: int = 0) -> list[F64]:
    """Each layer's weight gradients (with its normalisation's), flat."""
    if exact:
        with trainer.engine.exactly():
            trainer.gradients(epoch)
    else:
        trainer.engine.draw = draw
        try:
            trainer.gradients(epoch)
        finally:
            trainer.engine.draw = 0
    network = trainer.network
    groups = [list(layer.parameters()) for layer in network.layers]
    for group, norm in zip(groups, network.norms, strict=False):
        group += list(norm.parameters())
    return [_flat([p.grad for p in group if p.grad is not None]) for group in groups]


def _flat(gradients: Sequence[Tensor]) -> F64:
    return torch.cat([g.reshape(-1).double() for g in gradients]).cpu().numpy().copy()


def _compare(layer: int, exact: list[F64], other: list[F64], drawn: list[list[F64]]) -> LayerNoise:
    def chosen(gradients: list[F64]) -> F64:
        return np.concatenate(gradients) if layer < 0 else gradients[layer]

    g, other_g = chosen(exact), chosen(other)
    samples = np.stack([chosen(gradients) for gradients in drawn])
    size, size_other = float(g @ g), float(other_g @ other_g)
    codec = float(np.mean(np.sum((samples - g) ** 2, axis=1))) / size if size else 0.0
    drift = float(np.sum((samples.mean(0) - g) ** 2)) / size if size else 0.0
    both = (size + size_other) / 2
    return LayerNoise(
        layer=layer,
        codec=codec,
        dropout=float(np.sum((g - other_g) ** 2)) / 2 / both if both else 0.0,
        bias=len(drawn) * drift / codec if codec else 0.0,
    )
