"""GCN, GraphSAGE-mean and GAT layers.

A layer takes its inner rows after dropout and gives rows before its bias: dropout and bias stand in
the epilogue between layers. Shapes: n inner and h halo nodes of this rank, D entries in, F out, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.nn.attention import Edges, attend, merge, squared_weights
from toolkit.nn.features import NARROW, Rows, SparseRows, as_dense, project
from toolkit.nn.passage import Passage
from toolkit.plan import LayerStep

LEAKY_SLOPE = 0.2  # Velickovic et al. 2018, section 2.1
AttentionTrace = Callable[[LayerStep, Edges, Tensor], None]  # [E] squared weights of the edges, mean over heads


def glorot(generator: torch.Generator, *shape: int) -> nn.Parameter:
    """Glorot and Bengio's uniform initialisation over the last two sizes."""
    bound = math.sqrt(6.0 / (shape[-2] + shape[-1]))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))


class GCNLayer(nn.Module):
    """h'_v = sum over u in N(v) and v of alpha_{u,v} W h_u + b (Kipf and Welling 2017, eq. 2)."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = glorot(generator, inputs, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, rows_ND: Rows, passage: Passage) -> Tensor:
        return aggregate_linear(rows_ND, self.weight, passage)


class SAGELayer(nn.Module):
    """h'_v = W_self h_v + W mean over u in N(v) of h_u + b (Hamilton et al. 2017, mean aggregator)."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = glorot(generator, inputs, outputs)
        self.weight_self = glorot(generator, inputs, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, rows_ND: Rows, passage: Passage) -> Tensor:
        aggregate = aggregate_linear(rows_ND, self.weight, passage)
        if isinstance(rows_ND, Tensor) and self.weight_self.shape[1] > NARROW:
            return aggregate.addmm_(rows_ND, self.weight_self)  # a product nobody else holds
        return aggregate + project(rows_ND, self.weight_self)


def aggregate_linear(rows_ND: Rows, weight_DF: Tensor, passage: Passage) -> Tensor:
    """The aggregate of W times the rows: [n, F].

    Aggregation and W commute. Where rows travel after W, W comes first; where they travel before
    it, aggregation does; where nothing travels, whichever leaves the narrower product, and W where
    the rows are sparse.
    """
    if passage.step.sends == "outputs":
        return passage.aggregate(project(rows_ND, weight_DF))
    narrows = weight_DF.shape[1] < weight_DF.shape[0] and not passage.aggregated_already
    if isinstance(rows_ND, SparseRows) or (passage.step.sends == "nothing" and narrows):
        return passage.aggregate(rows_ND, transform=lambda rows: project(rows, weight_DF))
    return passage.aggregate(rows_ND) @ weight_DF


class GATLayer(nn.Module):
    """h'_v = sum over u in N(v) and v of softmax_u(LeakyReLU(a . [W h_u, W h_v])) W h_u + b, per head.

    Heads stand side by side (``mean_heads`` False) or are averaged (Velickovic et al. 2018, eqs. 3-6).
    """

    def __init__(
        self, inputs: int, outputs_per_head: int, heads: int, *, mean_heads: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.heads, self.mean_heads = heads, mean_heads
        self.trace: AttentionTrace | None = None  # told the squared weights of halo edges, while somebody asks
        self.weight = glorot(generator, inputs, heads * outputs_per_head)
        self.attend_source = glorot(generator, heads, outputs_per_head)
        self.attend_target = glorot(generator, heads, outputs_per_head)
        self.bias = nn.Parameter(torch.zeros(outputs_per_head * (1 if mean_heads else heads)))

    def forward(self, rows_ND: Rows, passage: Passage, local: Edges, halo: Edges) -> Tensor:
        """``local`` edges come from this rank's rows, ``halo`` edges from others'."""
        step, after_w = passage.step, passage.step.sends == "outputs"
        if after_w:
            own = self._heads(as_dense(passage.depart(project(rows_ND, self.weight))))
        else:
            own = self._heads(project(passage.depart(rows_ND), self.weight))
        at_target = (own * self.attend_target).sum(-1)
        near = attend(self._scores(own, at_target, local), own, local, None, passage.ledger, "central", step.layer)
        arrived = passage.arrive()
        far_rows = self._heads(as_dense(arrived) if after_w else project(arrived, self.weight))
        far_scores = self._scores(far_rows, at_target, halo)
        far = attend(far_scores, far_rows, halo, near.shift, passage.ledger, "marginal", step.layer)
        if self.trace is not None:
            self.trace(step, halo, squared_weights(far_scores, halo, near, far))
        out = merge(near, far)
        return out.mean(1) if self.mean_heads else out.flatten(1)

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), self.heads, rows.shape[1] // self.heads)

    def _scores(self, rows_MHF: Tensor, at_target_NH: Tensor, edges: Edges) -> Tensor:
        """LeakyReLU(a . [W h_u, W h_v]) of every edge u -> v: [E, H]."""
        at_source = (rows_MHF * self.attend_source).sum(-1)
        sums = at_source.index_select(0, edges.sources) + at_target_NH.index_select(0, edges.targets)
        return F.leaky_relu(sums, LEAKY_SLOPE)
