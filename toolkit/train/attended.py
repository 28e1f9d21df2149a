"""Traced attention: what stands for the coefficients of a row where they are learned.

A row that travels reaches its targets times its attention weight, by head. Rounding adds the same variance to every
entry of the row, and each head's entries are weighed by that head, so the sum of squared coefficients is

    sum over targets v of the mean over heads of attention(k, v)^2,

at the weights of the traced pass. What rounding does to the weights themselves, through the scores, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from toolkit.graph.part import Part
from toolkit.nn.attention import Edges
from toolkit.nn.layers import GATLayer
from toolkit.nn.model import Network
from toolkit.plan import LayerStep, travelling


class AttentionRecorder:
    """alpha_squared [h'] of the rows that a rank receives, by layer, of the last traced pass."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.squares: dict[int, NDArray[np.float64]] = {}

    def __call__(self, step: LayerStep, edges: Edges, squared_E: Tensor) -> None:
        """``squared_E``: the squared weight of every edge from a halo row."""
        part, targets = self._part, edges.targets.cpu().numpy()
        weights = squared_E.double().cpu().numpy()
        if step.max_reach is not None:  # only targets that matter to the loss
            weights = np.where(part.hops[targets] <= step.max_reach, weights, 0.0)
        sums = np.bincount(edges.sources.cpu().numpy(), weights, part.num_halo).astype(np.float64)
        self.squares[step.layer] = sums[travelling(part.halo_reach, step)]

    @contextmanager
    def listening(self, network: Network) -> Iterator[None]:
        """Told by every attention layer of the passes in this block."""
        self.listen(network, on=True)
        try:
            yield
        finally:
            self.listen(network, on=False)

    def listen(self, network: Network, *, on: bool) -> None:
        """From here on, or no longer."""
        for layer in network.layers:
            if isinstance(layer, GATLayer):
                layer.trace = self if on else None
