"""Input features: dense rows, or wide sparse ones (bags of words) that are never made dense."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from toolkit.comm.halo import Masks
from toolkit.counts import DENSEST
from toolkit.nn.sparse import CPU, SparseMatrix

NARROW = 32  # columns of a weight


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Constant sparse rows [n, D], and where each entry stands in the transposed matrix."""

    matrix: SparseMatrix
    rows: Tensor  # [nnz] row of each entry
    transposed_place: Tensor  # [nnz] the entry that stands at each place of the transposed matrix

    @staticmethod
    def of(matrix: sp.csr_matrix, dtype: torch.dtype, at: torch.device = CPU) -> SparseRows:
        numbered = sp.csr_matrix(
            (np.arange(1, matrix.nnz + 1, dtype=np.int64), matrix.indices, matrix.indptr), shape=matrix.shape
        )
        return SparseRows(
            matrix=SparseMatrix.of(matrix, dtype, at),
            rows=torch.from_numpy(np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))).to(at),
            transposed_place=torch.from_numpy(numbered.T.tocsr().data - 1).to(at),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.forward.shape

    def drop(self, mask_ND: Tensor, scale: float) -> SparseRows:
        """The rows after dropout: entries that are zero stay so, the others as the mask says."""
        forward = self.matrix.forward
        kept = mask_ND[self.rows, forward.indices.long()]
        values = forward.values * kept * scale
        return replace(
            self,
            matrix=SparseMatrix(
                forward.with_values(values), self.matrix.transposed.with_values(values[self.transposed_place])
            ),
        )


Rows: TypeAlias = Tensor | SparseRows


def drop(rows: Rows, masks: Masks | None) -> Rows:
    """Inner rows after dropout."""
    if masks is None:
        return rows
    return rows.drop(masks.inner, masks.scale) if isinstance(rows, SparseRows) else masks.drop(rows)


def drop_held(halo_rows: Rows, masks: Masks | None) -> Rows:
    """Held halo rows after dropout; they are constants, so no gradient."""
    if masks is None:
        return halo_rows
    if isinstance(halo_rows, SparseRows):
        return halo_rows.drop(masks.halo, masks.scale)
    return halo_rows * masks.halo * masks.scale


def project(rows_ND: Rows, weight_DF: Tensor) -> Tensor:
    """rows @ weight: [n, F]."""
    if isinstance(rows_ND, SparseRows):
        product: Tensor = _SparseTimesDense.apply(weight_DF, rows_ND.matrix)  # type: ignore[no-untyped-call]
        return product
    if weight_DF.shape[1] <= NARROW:
        narrow: Tensor = _TimesNarrow.apply(rows_ND, weight_DF)  # type: ignore[no-untyped-call]
        return narrow
    return rows_ND @ weight_DF


class _TimesNarrow(torch.autograd.Function):
    """rows @ weight for a narrow weight: BLAS forms grad^T rows three times faster than rows^T grad."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return rows @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, weight = ctx.saved_tensors
        grad = grads[0]
        to_rows = grad @ weight.T if ctx.needs_input_grad[0] else None
        return to_rows, (grad.T @ rows).T.contiguous()


class _SparseTimesDense(torch.autograd.Function):
    """A constant sparse matrix times a weight that learns."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.forward @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.transposed @ grads[0].contiguous(), None


def stays_sparse(features: object) -> bool:
    """Whether features are sparse enough to be kept so."""
    return isinstance(features, sp.csr_matrix) and features.nnz <= DENSEST * features.shape[0] * features.shape[1]


def as_dense(rows: Rows) -> Tensor:
    """Rows that are dense by construction."""
    assert isinstance(rows, Tensor)
    return rows
