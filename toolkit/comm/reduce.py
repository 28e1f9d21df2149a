"""The sum of weight gradients over ranks, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from toolkit.comm import horovod
from toolkit.comm.position import waiting
from toolkit.comm.world import MpiWorld, World

HOROVOD_FROM_BYTES = 2 << 20
"""With reduction = "auto", gradients of fewer bytes go by one Allreduce: a Horovod operation waits
for its next cycle (1 ms), which a small message does not repay (bench/reduction.py)."""


class GradientSum(Protocol):
    """Sums the gradients of a model's parameters over all ranks."""

    name: str

    def __call__(self, gradients: Sequence[Tensor]) -> None: ...


class FlatSum:
    """All gradients in one flat buffer, one Allreduce."""

    name = "mpi"

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        if self._world.size == 1:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._world.sum_in_place(flat.numpy())
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


class HorovodSum:
    """Horovod's grouped allreduce."""

    name = "horovod"

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        handle = self._hvd.grouped_allreduce_async_(list(gradients), op=self._hvd.Sum, name="weight_gradients")
        with waiting("weight gradients"):
            self._hvd.synchronize(handle)


def gradient_sum(world: World, reduction: str, num_bytes: int) -> GradientSum:
    """The reduction that a configuration asks for (train.reduction); Horovod needs an MPI job.

    Collective: under "auto" every rank tries Horovod, and one that can't start it turns all to mpi4py.
    """
    if not isinstance(world, MpiWorld) or reduction == "mpi":
        return FlatSum(world)
    if reduction == "horovod":
        return HorovodSum(horovod.start(world.comm))
    if num_bytes >= HOROVOD_FROM_BYTES and horovod.everywhere(world.comm):
        return HorovodSum(horovod.start(world.comm))
    return FlatSum(world)
