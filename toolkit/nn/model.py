"""The network: graph layers with normalisation and activation between them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from toolkit import config
from toolkit.nn.attention import Edges
from toolkit.nn.layers import ACTIVATIONS, GATLayer, GCNLayer, SAGELayer
from toolkit.nn.passage import Passage


class Network(nn.Module):
    """A model of a configuration: the same weights on every rank, from the seed alone.

    Dropout is no module here: it belongs to the passages, which know which entries travel.
    """

    def __init__(self, model: config.Model, num_features: int, num_classes: int, seed: int) -> None:
        super().__init__()
        self.kind = model.kind
        generator = torch.Generator().manual_seed(seed)
        widths = [num_features] + [model.hidden] * (model.layers - 1) + [num_classes]
        self.layers = nn.ModuleList(
            _layer(model, inputs, outputs, last=index == model.layers - 1, generator=generator)
            for index, (inputs, outputs) in enumerate(itertools.pairwise(widths))
        )
        hidden = range(model.layers - 1)
        self.norms = nn.ModuleList(
            nn.LayerNorm(model.hidden) if model.norm == "layer" else nn.Identity() for _ in hidden
        )
        self.activation = ACTIVATIONS[model.activation]

    def forward(self, features_ND: Tensor, passages: Sequence[Passage], edges: Sequence[Edges]) -> Tensor:
        """Logits of the inner nodes: [n, classes]. One passage a layer; ``edges`` local and halo, for GAT only."""
        rows = features_ND
        for index, (layer, passage) in enumerate(zip(self.layers, passages, strict=True)):
            rows = layer(rows, passage, *edges)
            if index < len(self.norms):
                rows = self.activation(self.norms[index](rows))
        return rows


def _layer(model: config.Model, inputs: int, outputs: int, *, last: bool, generator: torch.Generator) -> nn.Module:
    if model.kind == "gcn":
        return GCNLayer(inputs, outputs, generator)
    if model.kind == "sage":
        return SAGELayer(inputs, outputs, generator)
    heads = model.out_heads if last else model.heads
    per_head = outputs if last else outputs // heads
    return GATLayer(inputs, per_head, heads, mean_heads=last, generator=generator)
