"""The sum of weight gradients over ranks, in place."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

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
        flat = _flat(gradients).cpu()  # a GPU's too: they are small beside the rows
        self._world.sum_in_place(flat.numpy())
        _spread(flat, gradients)


class HorovodGrouped:
    """The same by Horovod, after backward."""

    name = "horovod, grouped"

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        flat = _flat(gradients).cpu()
        handle = self._hvd.allreduce_async_(flat, op=self._hvd.Sum, name="weight_gradients")
        with waiting("weight gradients"):
            self._hvd.synchronize(handle)
        _spread(flat, gradients)


class HorovodOverlapped:
    """Each gradient by itself, as soon as backward has formed it: Horovod's thread sums while backward goes on."""

    name = "horovod, overlapping backward"

    def __init__(self, hvd: Any, parameters: Sequence[nn.Parameter]) -> None:
        self._hvd = hvd
        self._handles: list[Any] = []
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(functools.partial(self._start, number))  # type: ignore[no-untyped-call]

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        handles, self._handles = self._handles, []
        with waiting("weight gradients"):
            for handle in handles:
                self._hvd.synchronize(handle)

    def _start(self, number: int, parameter: Tensor) -> None:
        name = f"weight_gradient.{number}"
        self._handles.append(self._hvd.allreduce_async_(parameter.grad, op=self._hvd.Sum, name=name))


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _spread(flat: Tensor, gradients: Sequence[Tensor]) -> None:
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def gradient_sum(world: World, reduction: str, parameters: Sequence[nn.Parameter], *, overlap: bool) -> GradientSum:
    """The reduction that a configuration asks for (train.reduction); Horovod needs an MPI job.

    ``overlap``: by Horovod, during backward; the parameters get hooks, so make one for a model. Gradients on a
    GPU are summed on the host, all together after backward.

    Collective: under "auto" every rank tries Horovod, and one that can't start it turns all to mpi4py.
    """
    if not isinstance(world, MpiWorld) or reduction == "mpi":
        return FlatSum(world)
    num_bytes = sum(p.numel() * p.element_size() for p in parameters)
    if reduction == "horovod" or (num_bytes >= HOROVOD_FROM_BYTES and horovod.everywhere(world.comm)):
        hvd = horovod.start(world.comm)
        on_host = all(p.device.type == "cpu" for p in parameters)
        return HorovodOverlapped(hvd, parameters) if overlap and on_host else HorovodGrouped(hvd)
    return FlatSum(world)
