"""The graph that every reader returns and the partitioner takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Features: TypeAlias = NDArray[np.float32] | sp.csr_matrix
# int64 [n]: the class of each node, -1 where unknown; or multi-label, uint8 [n, C]: 1 where a label applies.
# A multi-label row of zeros is a node that no label applies to, not an unknown one.
Labels: TypeAlias = NDArray[Any]


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
    labels: Labels  # [n], or multi-label [n, C]
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

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    def in_degrees(self) -> IntArray:
        return np.diff(self.indptr)


def is_known(labels: Labels) -> BoolArray:
    """Whether each node's label is known: [n]. Of multi-label nodes all are."""
    return np.ones(len(labels), np.bool_) if labels.ndim == 2 else labels >= 0
