"""The graph that every reader returns and the partitioner takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Features: TypeAlias = NDArray[np.float32] | sp.csr_matrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A whole graph in memory; n nodes, E directed edges, D features, C classes.

    Edges are held by target: the in-neighbours of node v, from which v receives messages, are
    ``indices[indptr[v]:indptr[v + 1]]``, ascending.
    """

    name: str
    indptr: IntArray  # [n + 1]
    indices: IntArray  # [E] sources, sorted within a row
    features: Features  # [n, D] float32, dense or scipy CSR
    labels: IntArray  # [n] class of each node, -1 where unknown
    num_classes: int
    train_mask: BoolArray  # [n]
    val_mask: BoolArray  # [n]
    test_mask: BoolArray  # [n]
    notes: tuple[str, ...] = ()  # what a report must say: made-up features, dropped edges ...

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Directed edges: an undirected edge counts twice."""
        return len(self.indices)

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    def in_degrees(self) -> IntArray:
        return np.diff(self.indptr)
