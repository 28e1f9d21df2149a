"""The variance that rounding adds to the rows that travel, measured beside what AdaQP's theorems say of it.

Both are sums over the messages k of an exchange, as they weigh in what their receivers add up:

    measured   alpha_k^2 times the mean over draws of ||h^_k - h_k||^2
    bound      alpha_k^2 e (max h_k - min h_k)^2 / 6 / (2^b - 1)^2     (Theorems 1 and 3)

of the same rows: those of one pass, at its weights, masks and widths. An entry that lies at f between two codes S
apart has variance S^2 f (1 - f). The 1/6 is its mean over f: what the theorems call a bound is what rows have whose
entries lie anywhere between codes. Entries on a code (the ends of a row; zeros, after a ReLU) have none, so rows of
few entries and sparse ones stay below it; those halfway have 1/4, so 1.5 times the bound is the most. Beyond that
goes only the rounding of S and Z to bfloat16, outwards, which the bound leaves out: a few percent at 8 bits, more
where a row is far from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulator.epoch import exchange_variance_bound
from toolkit.comm.codec import Codec, Quantised, gather
from toolkit.comm.halo import Noise
from toolkit.comm.layout import Layout
from toolkit.comm.ledger import Direction
from toolkit.comm.way import listed
from toolkit.plan import LayerStep
from toolkit.train.traced import RankRecord, RowKey, exchange_of, trace

if TYPE_CHECKING:
    from toolkit.train.trainer import Trainer

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNoise:
    """What rounding adds to the aggregates of an exchange, or of several: squared, summed over entries and ranks."""

    messages: int
    measured: float
    bound: float

    @staticmethod
    def together(several: Sequence[RowNoise]) -> RowNoise | None:
        """The sum; None of none."""
        if not several:
            return None
        return RowNoise(
            messages=sum(one.messages for one in several),
            measured=sum(one.measured for one in several),
            bound=sum(one.bound for one in several),
        )


class ErrorSampler:
    """Rounds every row of a codec that is about to travel, ``draws`` times, and keeps its mean squared error.

    A message is written and read here as its receiver would; nothing is sent. ``squared[layer, direction]`` is [m], in
    the order of the listing.
    """

    def __init__(self, trainer: Trainer, codec: Codec, epoch: int, draws: int) -> None:
        self._coded, self._codec = trainer.engine.coded, codec
        self._noises = [Noise(seed=trainer.seed, epoch=epoch, draw=draw) for draw in range(1, draws + 1)]
        self.squared: dict[RowKey, F64] = {}

    def __call__(
        self, step: LayerStep, direction: Direction, out: Layout, rows_XD: Tensor, masks: Tensor | None
    ) -> None:
        if not self._coded("train", step.layer):
            return
        wire = gather(rows_XD.detach().cpu(), None if masks is None else masks.cpu(), out).float()
        own = replace(listed(out), buffer=torch.empty(len(out.buffer), dtype=torch.uint8))
        read, total = torch.empty_like(wire), torch.zeros(len(wire), dtype=torch.float64)
        for noise in self._noises:
            payload = self._codec.encode(wire, None, own, noise.key("train", step.layer, direction), None)
            self._codec.decode(payload, None, own, read, add=False)
            total += (read.double() - wire).square().sum(1)
        self.squared[step.layer, direction] = (total / len(self._noises)).numpy()


def measure_rows(trainer: Trainer, epoch: int, draws: int) -> dict[RowKey, RowNoise]:
    """Of every quantised exchange in a pass of ``epoch``, the same on every rank; empty where no row has widths.

    The draws are those of ``noise.measure``. Changes nothing; every rank calls it.
    """
    codec, world = trainer.engine.codec, trainer.world
    if not isinstance(codec, Quantised):
        return {}
    sampler = ErrorSampler(trainer, codec, epoch, draws)
    gathered = world.gather((trace(trainer, {}, epoch, sampler), sampler.squared))
    found = None
    if gathered is not None:
        records, squared = [record for record, _ in gathered], [own for _, own in gathered]
        found = {key: _compare(trainer, records, squared, key) for key in sampler.squared}
    result = world.broadcast(found)
    assert result is not None
    return result


def _compare(trainer: Trainer, records: list[RankRecord], squared: list[dict[RowKey, F64]], key: RowKey) -> RowNoise:
    layer, direction = key
    exchange = exchange_of(records, trainer.engine.plan.train[layer], direction)
    errors = np.concatenate([own[key] for own in squared])
    return RowNoise(
        messages=len(errors),
        measured=float(exchange.alpha_squared @ errors),
        bound=exchange_variance_bound(exchange),
    )
