"""The local sparse products: CSR matrices with their transposes, and the product as autograd sees it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.comm.ledger import Ledger
from toolkit.graph.part import Part


@dataclass(frozen=True, slots=True, eq=False)
class SparseMatrix:
    """A constant [n, m] matrix and its transpose, both CSR: backward needs the second."""

    forward: Tensor
    transposed: Tensor

    @staticmethod
    def of(matrix: sp.csr_matrix, dtype: torch.dtype) -> SparseMatrix:
        return SparseMatrix(_torch_csr(matrix, dtype), _torch_csr(matrix.T.tocsr(), dtype))

    def __matmul__(self, rows_MD: Tensor) -> Tensor:
        """The product without autograd."""
        return _product(self.forward, rows_MD)


def _torch_csr(matrix: sp.csr_matrix, dtype: torch.dtype) -> Tensor:
    return csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data).to(dtype),
        matrix.shape,
    )


def csr_tensor(indptr: Tensor, indices: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A torch CSR matrix; its beta-state and unchecked-invariants warnings say nothing to our users."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(indptr, indices, values, size=size, check_invariants=False)


def _product(matrix: Tensor, rows: Tensor) -> Tensor:
    if 0 in matrix.shape or matrix.values().numel() == 0:
        return rows.new_zeros(matrix.shape[0], rows.shape[1])
    return matrix @ rows


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: SparseMatrix, ledger: Ledger, stage: str, layer: int) -> Tensor:
        ctx.matrix, ctx.ledger, ctx.stage, ctx.layer = matrix, ledger, stage, layer
        with ledger.stage(stage, layer):
            return _product(matrix.forward, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        with ctx.ledger.stage(ctx.stage, ctx.layer, "backward"):
            return _product(ctx.matrix.transposed, grads[0].contiguous()), None, None, None, None


def multiply(matrix: SparseMatrix, rows_MD: Tensor, ledger: Ledger, stage: str, layer: int) -> Tensor:
    """matrix @ rows, its seconds booked under ``stage`` of ``layer``: [n, m] x [m, D] -> [n, D]."""
    product: Tensor = _Multiply.apply(rows_MD, matrix, ledger, stage, layer)  # type: ignore[no-untyped-call]
    return product


def one_loop_each(part: Part) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The local adjacency with exactly one self-loop a node, as (indptr, indices): GCN's and GAT's edges."""
    n = part.num_inner
    targets = np.repeat(np.arange(n), np.diff(part.indptr))
    others = part.indices != targets
    targets = np.concatenate([targets[others], np.arange(n)])
    sources = np.concatenate([part.indices[others], np.arange(n)])
    order = np.lexsort((sources, targets))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(targets, minlength=n))))
    return indptr, sources[order]


def gcn_coefficients(part: Part) -> sp.csr_matrix:
    """alpha_{u,v} = 1 / sqrt(d_u d_v), d the in-degree in the whole graph with one self-loop: [n, n + h].

    Kipf and Welling 2017, eq. 2.
    """
    indptr, indices = one_loop_each(part)
    inverse_root = 1.0 / np.sqrt(np.concatenate([part.in_degrees, part.halo_in_degrees]) + 1.0)
    targets = np.repeat(np.arange(part.num_inner), np.diff(indptr))
    return _csr(inverse_root[targets] * inverse_root[indices], indices, indptr, part)


def mean_coefficients(part: Part) -> sp.csr_matrix:
    """alpha_{u,v} = 1 / (in-neighbours of v): [n, n + h]. GraphSAGE, Hamilton et al. 2017, mean aggregator."""
    counts = np.diff(part.indptr)
    return _csr(np.repeat(1.0 / np.maximum(counts, 1), counts), part.indices, part.indptr, part)


def _csr(
    values: NDArray[np.float64], indices: NDArray[np.int64], indptr: NDArray[np.int64], part: Part
) -> sp.csr_matrix:
    return sp.csr_matrix((values, indices, indptr), shape=(part.num_inner, part.num_inner + part.num_halo))
