"""The network: graph layers with normalisation and activation between them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from toolkit import config
from toolkit.comm.world import Solo, World
from toolkit.nn.attention import Edges
from toolkit.nn.epilogue import epilogue, plain_epilogue
from toolkit.nn.features import Rows, drop
from toolkit.nn.layers import GATLayer, GCNLayer, SAGELayer
from toolkit.nn.norm import SyncBatchNorm
from toolkit.nn.passage import Passage


class Network(nn.Module):
    """A model of a configuration: the same weights on every rank, from the seed alone.

    Dropout is no module here: its masks belong to the passages, which know which entries travel.
    """

    def __init__(
        self, model: config.Model, num_features: int, num_classes: int, seed: int, world: World | None = None
    ) -> None:
        super().__init__()
        self.kind = model.kind
        generator = torch.Generator().manual_seed(seed)
        widths = [num_features] + [model.hidden] * (model.layers - 1) + [num_classes]
        self.layers = nn.ModuleList(
            _layer(model, inputs, outputs, last=index == model.layers - 1, generator=generator)
            for index, (inputs, outputs) in enumerate(itertools.pairwise(widths))
        )
        hidden = range(model.layers - 1) if model.norm != "none" else ()
        self.norms = nn.ModuleList(_norm(model, world or Solo()) for _ in hidden)
        self.activation, self.residual = model.activation, model.residual

    def forward(self, features_ND: Rows, passages: Sequence[Passage], edges: Sequence[Edges]) -> Tensor:
        """Logits of the inner nodes: [n, classes]. One passage a layer; ``edges`` local and halo, for GAT only."""
        rows: Rows = passages[0].drop(features_ND)
        last = len(self.layers) - 1
        skip: Tensor | None = None  # the hidden rows before dropout, where residual
        for index, (layer, passage) in enumerate(zip(self.layers, passages, strict=True)):
            out: Tensor = layer(rows, passage, *edges)
            if index < last:
                norm = self.norms[index] if len(self.norms) else None
                bias, masks = cast(Tensor, layer.bias), passages[index + 1].masks
                if self.residual:
                    hidden = plain_epilogue(out, bias, norm, self.activation, None)
                    skip = hidden if skip is None else hidden + skip
                    rows = drop(skip, masks)
                else:
                    rows = epilogue(out, bias, norm, self.activation, masks)
        return out + cast(Tensor, self.layers[last].bias)


def _norm(model: config.Model, world: World) -> nn.Module:
    return nn.LayerNorm(model.hidden) if model.norm == "layer" else SyncBatchNorm(model.hidden, world)


def _layer(model: config.Model, inputs: int, outputs: int, *, last: bool, generator: torch.Generator) -> nn.Module:
    if model.kind == "gcn":
        return GCNLayer(inputs, outputs, generator)
    if model.kind == "sage":
        return SAGELayer(inputs, outputs, generator)
    heads = model.out_heads if last else model.heads
    per_head = outputs if last else outputs // heads
    return GATLayer(inputs, per_head, heads, mean_heads=last, generator=generator)
