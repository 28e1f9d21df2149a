"""Batch normalisation over the nodes of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from toolkit.comm.world import World

MOMENTUM, EPS = 0.1, 1e-5  # torch.nn.BatchNorm1d's


class SyncBatchNorm(nn.Module):
    """BatchNorm1d over the whole graph's nodes: N ranks normalise as one process does (Ioffe and Szegedy 2015).

    Each direction costs one small sum over ranks (2 x width + 1 numbers in float64).
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, world: World) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self._world = world

    def forward(self, rows_ND: Tensor) -> Tensor:
        """[n, D] -> [n, D]; evaluation uses the running statistics."""
        if not self.training:
            scale = self.weight * (self.running_var + EPS).rsqrt()
            return (rows_ND - self.running_mean) * scale + self.bias
        out: Tensor
        out, mean, variance, count = _Normalise.apply(rows_ND, self.weight, self.bias, self._world)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.running_mean.lerp_(mean, MOMENTUM)
            self.running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), MOMENTUM)
        return out


def _sum(world: World, *parts: Tensor) -> list[Tensor]:
    """Each [D] summed over ranks, in float64."""
    flat = torch.cat([part.double().reshape(-1) for part in parts])
    on_host = flat.cpu()  # itself, unless it is a GPU's
    world.sum_in_place(on_host.numpy())
    return list(torch.split(on_host.to(flat.device), [part.numel() for part in parts]))


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, world: World
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = rows.double()  # sums of squares lose half of the digits: form them in float64
        total, count = _sum(world, wide.sum(0), rows.new_full((1,), len(rows), dtype=torch.float64))
        mean = total / count
        variance = _sum(world, (wide - mean).square().sum(0))[0] / count
        rstd = (variance + EPS).rsqrt()
        hat = ((wide - mean) * rstd).to(rows.dtype)
        ctx.save_for_backward(hat, weight, rstd.to(rows.dtype))
        ctx.world, ctx.count = world, count
        statistics = (mean.to(rows.dtype), variance.to(rows.dtype), count.to(rows.dtype))
        ctx.mark_non_differentiable(*statistics)
        return hat * weight + bias, *statistics

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hat, weight, rstd = ctx.saved_tensors
        grad = grads[0]
        to_bias, to_weight = grad.sum(0), (grad * hat).sum(0)
        sum_grad, sum_along = (s.to(grad.dtype) for s in _sum(ctx.world, to_bias, to_weight))
        count = ctx.count.to(grad.dtype)
        to_rows = (grad - sum_grad / count - hat * (sum_along / count)) * (weight * rstd)
        return to_rows, to_weight, to_bias, None
