"""Edge softmax and the attention-weighted sum over a fixed CSR adjacency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.nn.sparse import csr_tensor

EDGES_PER_CHUNK = 1 << 16  # bounds the [edges, F] temporaries of backward


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """E edges in CSR order by target (n targets, m sources), and the same edges ordered by source."""

    indptr: Tensor  # [n + 1]
    sources: Tensor  # [E]
    targets: Tensor  # [E]
    by_source_indptr: Tensor  # [m + 1]
    by_source: Tensor  # [E] positions of the edges, ordered by source
    num_sources: int

    @staticmethod
    def of(indptr: NDArray[np.int64], indices: NDArray[np.int64], num_sources: int) -> Edges:
        targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        counts = np.bincount(indices, minlength=num_sources)
        return Edges(
            indptr=torch.from_numpy(np.ascontiguousarray(indptr)),
            sources=torch.from_numpy(np.ascontiguousarray(indices)),
            targets=torch.from_numpy(targets),
            by_source_indptr=torch.from_numpy(np.concatenate(([0], np.cumsum(counts)))),
            by_source=torch.from_numpy(np.argsort(indices, kind="stable")),
            num_sources=num_sources,
        )


def edge_softmax(scores_EH: Tensor, edges: Edges) -> Tensor:
    """Softmax over the in-edges of each target, per head: [E, H] -> [E, H]."""
    n, heads = len(edges.indptr) - 1, scores_EH.shape[1]
    index = edges.targets[:, None].expand(-1, heads)
    with torch.no_grad():  # the shift cancels out, so it needs no gradient
        top = scores_EH.new_full((n, heads), -torch.inf).scatter_reduce(0, index, scores_EH, "amax")
    weights = (scores_EH - top[edges.targets]).exp()
    totals = weights.new_zeros(n, heads).index_add(0, edges.targets, weights)
    return weights / totals[edges.targets]


def weighted_sum(weights_EH: Tensor, rows_MHF: Tensor, edges: Edges) -> Tensor:
    """out[v, h] = sum over edges u -> v of weights[edge, h] rows[u, h]: [n, H, F]."""
    result: Tensor = _WeightedSum.apply(weights_EH, rows_MHF, edges)  # type: ignore[no-untyped-call]
    return result


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(weights, rows)
        return _per_head(edges.indptr, edges.sources, weights, rows, len(edges.indptr) - 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        edges, (weights, rows) = ctx.edges, ctx.saved_tensors
        order = edges.by_source
        to_rows = _per_head(edges.by_source_indptr, edges.targets[order], weights[order], grads[0], edges.num_sources)
        to_weights = torch.empty_like(weights)
        for begin in range(0, len(weights), EDGES_PER_CHUNK):
            chunk = slice(begin, begin + EDGES_PER_CHUNK)
            to_weights[chunk] = (grads[0][edges.targets[chunk]] * rows[edges.sources[chunk]]).sum(-1)
        return to_weights, to_rows, None


def _per_head(indptr: Tensor, indices: Tensor, weights: Tensor, rows: Tensor, n: int) -> Tensor:
    """One sparse product a head."""
    out = rows.new_zeros(n, rows.shape[1], rows.shape[2])
    if len(indices):
        for head in range(rows.shape[1]):
            values = weights[:, head].contiguous()
            matrix = csr_tensor(indptr, indices, values, (n, rows.shape[0]))
            out[:, head] = matrix @ rows[:, head].contiguous()
    return out
