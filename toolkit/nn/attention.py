"""Edge softmax and the attention-weighted sum, in two parts: edges from local rows, then from halo rows.

    local edges                          halo rows arrive, halo edges
    s = scores, m = max s                m' = max(m, max s')
    total = sum e^(s - m)                total' = total e^(m - m') + sum e^(s' - m')
    sum = sum e^(s - m) z                out = (sum e^(m - m') + sum e^(s' - m') z') / total'

The result does not depend on the shifts m, m', so they need no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.comm.ledger import Ledger
from toolkit.nn.sparse import CPU, csr_tensor

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
    def of(
        targets: NDArray[np.int64],
        sources: NDArray[np.int64],
        num_targets: int,
        num_sources: int,
        at: torch.device = CPU,
    ) -> Edges:
        """``targets`` ascending; tensors on the device ``at``."""

        def starts(ids: NDArray[np.int64], length: int) -> Tensor:
            return torch.from_numpy(np.concatenate(([0], np.cumsum(np.bincount(ids, minlength=length))))).to(at)

        return Edges(
            indptr=starts(targets, num_targets),
            sources=torch.from_numpy(sources).to(at),
            targets=torch.from_numpy(targets).to(at),
            by_source_indptr=starts(sources, num_sources),
            by_source=torch.from_numpy(np.argsort(sources, kind="stable")).to(at),
            num_sources=num_sources,
        )

    @property
    def num_targets(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """The sums over some of each target's edges, up to the factor e^shift."""

    shift: Tensor  # [n, H] largest score; -inf where there is no edge
    total: Tensor  # [n, H]
    rows: Tensor  # [n, H, F]


def attend(
    scores_EH: Tensor,
    rows_MHF: Tensor,
    edges: Edges,
    least_shift: Tensor | None,
    ledger: Ledger,
    stage: str,
    layer: int,
) -> Attended:
    """The sums over ``edges``, shifted by their largest score, or by ``least_shift`` where that is larger."""
    n, heads = edges.num_targets, scores_EH.shape[1]
    with torch.no_grad():
        index = edges.targets[:, None].expand(-1, heads)
        shift = scores_EH.new_full((n, heads), -torch.inf).scatter_reduce(0, index, scores_EH, "amax")
        if least_shift is not None:
            shift = torch.maximum(shift, least_shift)
    weights = (scores_EH - shift.index_select(0, edges.targets)).exp()
    total = weights.new_zeros(n, heads).index_add(0, edges.targets, weights)
    rows: Tensor = _WeightedSum.apply(weights, rows_MHF, edges, ledger, stage, layer)  # type: ignore[no-untyped-call]
    return Attended(shift, total, rows)


def merge(local: Attended, halo: Attended) -> Tensor:
    """The softmax-weighted rows over both: [n, H, F]. ``halo`` was shifted by at least ``local.shift``."""
    factor = (local.shift - halo.shift).exp()
    total = local.total * factor + halo.total
    return (local.rows * factor.unsqueeze(-1) + halo.rows) / total.unsqueeze(-1)


class _WeightedSum(torch.autograd.Function):
    """out[v, h] = sum over edges u -> v of weights[edge, h] rows[u, h]: [n, H, F]."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, rows: Tensor, edges: Edges, ledger: Ledger, stage: str, layer: int
    ) -> Tensor:
        ctx.edges, ctx.booked = edges, (ledger, stage, layer)
        ctx.save_for_backward(weights, rows)
        with ledger.stage(stage, layer):
            return _per_head(edges.indptr, edges.sources, weights, rows, edges.num_targets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        edges, (weights, rows), (ledger, stage, layer) = ctx.edges, ctx.saved_tensors, ctx.booked
        with ledger.stage(stage, layer, "backward"):
            order = edges.by_source
            to_rows = _per_head(
                edges.by_source_indptr, edges.targets[order], weights[order], grads[0], edges.num_sources
            )
            to_weights = torch.empty_like(weights)
            for begin in range(0, len(weights), EDGES_PER_CHUNK):
                chunk = slice(begin, begin + EDGES_PER_CHUNK)
                at_targets = grads[0].index_select(0, edges.targets[chunk])
                to_weights[chunk] = (at_targets * rows.index_select(0, edges.sources[chunk])).sum(-1)
        return to_weights, to_rows, None, None, None, None


def _per_head(indptr: Tensor, indices: Tensor, weights: Tensor, rows: Tensor, n: int) -> Tensor:
    """One sparse product a head."""
    out = rows.new_zeros(n, rows.shape[1], rows.shape[2])
    if len(indices):
        for head in range(rows.shape[1]):
            values = weights[:, head].contiguous()
            matrix = csr_tensor(indptr, indices, values, (n, rows.shape[0]))
            out[:, head] = matrix @ rows[:, head].contiguous()
    return out


def squared_weights(scores_EH: Tensor, edges: Edges, local: Attended, halo: Attended) -> Tensor:
    """The squared attention weight of every halo edge, its mean over heads: [E]. For a trace: no gradient."""
    with torch.no_grad():
        total = local.total * (local.shift - halo.shift).exp() + halo.total
        weights = (scores_EH - halo.shift.index_select(0, edges.targets)).exp() / total.index_select(0, edges.targets)
        return weights.square().mean(1)
