"""What stands between two graph layers: bias, normalisation, activation, dropout.

One pass over memory each way where the kernels are there; plain torch elsewhere, and as the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import native
from toolkit.comm.halo import Masks

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "elu": F.elu}


def epilogue(rows_ND: Tensor, bias_D: Tensor, norm: nn.Module | None, activation: str, masks: Masks | None) -> Tensor:
    """dropout(activation(norm(rows + bias))): [n, D]. ``masks`` are the next layer's; None drops nothing."""
    by_rows = norm is None or isinstance(norm, nn.LayerNorm)
    if by_rows and activation == "relu" and native.available(rows_ND, bias_D):
        gamma, beta, eps = (norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else (None, None, 0.0)
        fused: Tensor = _Fused.apply(rows_ND, bias_D, gamma, beta, eps, masks)  # type: ignore[no-untyped-call]
        return fused
    return plain_epilogue(rows_ND, bias_D, norm, activation, masks)


def plain_epilogue(
    rows_ND: Tensor, bias_D: Tensor, norm: nn.Module | None, activation: str, masks: Masks | None
) -> Tensor:
    """The same in plain torch."""
    rows = rows_ND + bias_D
    if norm is not None:
        rows = norm(rows)
    rows = ACTIVATIONS[activation](rows)
    return rows if masks is None else masks.drop(rows)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, bias: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, masks: Masks | None
    ) -> Tensor:
        n, width = rows.shape
        rows, out = rows.contiguous(), torch.empty_like(rows)
        mean, rstd = (rows.new_empty(n), rows.new_empty(n)) if gamma is not None else (None, None)
        mask, scale = (None, 1.0) if masks is None else (masks.inner, float(masks.scale))
        native.call(
            "epilogue_f32", n, width, rows, bias, gamma, beta, eps, mask, scale, out, mean, rstd, native.threads()
        )
        ctx.save_for_backward(rows, bias, gamma, out, mean, rstd)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, bias, gamma, out, mean, rstd = ctx.saved_tensors
        n, width = rows.shape
        grad, to_rows, to_bias = grads[0].contiguous(), torch.empty_like(rows), torch.empty_like(bias)
        to_gamma, to_beta = (None, None) if gamma is None else (torch.empty_like(gamma), torch.empty_like(gamma))
        library = native.library()
        assert library is not None
        work = rows.new_empty(library.bitring_epilogue_work(n, width) if n else 0)
        native.call(
            "epilogue_backward_f32", n, width, grad, rows, bias, gamma, ctx.scale, out, mean, rstd,
            to_rows, to_bias, to_gamma, to_beta, work, native.threads(),
        )  # fmt: skip
        return to_rows, to_bias, to_gamma, to_beta, None, None
