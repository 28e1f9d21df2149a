"""The local sparse products: CSR matrices with their transposes, and the product as autograd sees it."""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from toolkit import native
from toolkit.comm.ledger import Ledger

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """One constant CSR matrix, [n, m], in the forms that torch and the kernel want."""

    indptr: Tensor  # [n + 1] int64
    indices: Tensor  # [nnz] int32
    values: Tensor  # [nnz]
    shape: tuple[int, int]
    torch_form: Tensor | None  # None where the kernel serves

    @staticmethod
    def of(matrix: sp.csr_matrix, dtype: torch.dtype, at: torch.device = CPU) -> Csr:
        """``matrix`` in ``dtype`` on a device; torch's own product serves there."""
        indptr = torch.from_numpy(matrix.indptr.astype(np.int64)).to(at)
        indices = torch.from_numpy(matrix.indices).to(at)
        values, shape = torch.from_numpy(matrix.data).to(dtype).to(at), (int(matrix.shape[0]), int(matrix.shape[1]))
        plain = None if native.available(values) else csr_tensor(indptr, indices.long(), values, shape)
        return Csr(indptr, indices.int(), values, shape, plain)

    def with_values(self, values: Tensor) -> Csr:
        """Other values at the same places."""
        plain = None
        if self.torch_form is not None:
            plain = csr_tensor(self.indptr, self.indices.long(), values, self.shape)
        return replace(self, values=values, torch_form=plain)

    def __matmul__(self, rows_MD: Tensor) -> Tensor:
        """[n, m] x [m, D] -> [n, D], without autograd."""
        if len(self.values) == 0 or 0 in self.shape:
            return rows_MD.new_zeros(self.shape[0], rows_MD.shape[1])
        if self.torch_form is not None:
            return self.torch_form @ rows_MD
        out = rows_MD.new_empty(self.shape[0], rows_MD.shape[1])
        return self._product(rows_MD, out, accumulate=False)

    def add_product(self, rows_MD: Tensor, out_ND: Tensor) -> Tensor:
        """out += A rows, in place: [n, D]."""
        if len(self.values) == 0 or 0 in self.shape:
            return out_ND
        if self.torch_form is not None:
            return out_ND.add_(self.torch_form @ rows_MD)
        return self._product(rows_MD, out_ND, accumulate=True)

    def _product(self, rows: Tensor, out: Tensor, *, accumulate: bool) -> Tensor:
        (n, m), width = self.shape, rows.shape[1]
        native.call(
            "spmm_f32", n, m, width, self.indptr, self.indices, self.values, rows.contiguous(), out,
            ctypes.c_int(accumulate), native.threads(),
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True, eq=False)
class SparseMatrix:
    """A constant [n, m] matrix and its transpose, both CSR: backward needs the second."""

    forward: Csr
    transposed: Csr

    @staticmethod
    def of(matrix: sp.csr_matrix, dtype: torch.dtype, at: torch.device = CPU) -> SparseMatrix:
        return SparseMatrix(Csr.of(matrix.tocsr(), dtype, at), Csr.of(matrix.T.tocsr(), dtype, at))

    def __matmul__(self, rows_MD: Tensor) -> Tensor:
        """The product without autograd."""
        return self.forward @ rows_MD


def csr_tensor(indptr: Tensor, indices: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A torch CSR matrix; its beta-state and unchecked-invariants warnings say nothing to our users."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(indptr, indices, values, size=size, check_invariants=False)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: SparseMatrix, ledger: Ledger, stage: str, layer: int) -> Tensor:
        ctx.matrix, ctx.ledger, ctx.stage, ctx.layer = matrix, ledger, stage, layer
        with ledger.stage(stage, layer):
            return matrix.forward @ rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        with ctx.ledger.stage(ctx.stage, ctx.layer, "backward"):
            return ctx.matrix.transposed @ grads[0].contiguous(), None, None, None, None


def multiply(matrix: SparseMatrix, rows_MD: Tensor, ledger: Ledger, stage: str, layer: int) -> Tensor:
    """matrix @ rows, its seconds booked under ``stage`` of ``layer``: [n, m] x [m, D] -> [n, D]."""
    product: Tensor = _Multiply.apply(rows_MD, matrix, ledger, stage, layer)  # type: ignore[no-untyped-call]
    return product


class _AddProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sums: Tensor, rows: Tensor, matrix: SparseMatrix, ledger: Ledger, stage: str, layer: int
    ) -> Tensor:
        ctx.matrix, ctx.ledger, ctx.stage, ctx.layer = matrix, ledger, stage, layer
        ctx.mark_dirty(sums)
        with ledger.stage(stage, layer):
            return matrix.forward.add_product(rows, sums)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        with ctx.ledger.stage(ctx.stage, ctx.layer, "backward"):
            return grads[0], ctx.matrix.transposed @ grads[0].contiguous(), None, None, None, None


def add_product(
    sums_ND: Tensor, matrix: SparseMatrix, rows_MD: Tensor, ledger: Ledger, stage: str, layer: int
) -> Tensor:
    """sums + matrix @ rows, in place of sums: [n, D]."""
    total: Tensor = _AddProduct.apply(sums_ND, rows_MD, matrix, ledger, stage, layer)  # type: ignore[no-untyped-call]
    return total
