"""Small graphs for tests, and the odd shapes that must work."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from toolkit.graph.data import Graph


def random_graph(
    nodes: int = 120,
    features: int = 9,
    classes: int = 3,
    mean_degree: float = 4.0,
    directed: bool = False,
    train_share: float = 0.2,
    seed: int = 0,
) -> Graph:
    """A graph with isolated nodes; training nodes scattered."""
    rng = np.random.default_rng(seed)
    matrix = sp.random(nodes, nodes, density=min(1.0, mean_degree / nodes), random_state=seed, format="csr")
    if not directed:
        matrix = (matrix + matrix.T).tocsr()
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    train = np.zeros(nodes, dtype=np.bool_)
    train[rng.choice(nodes, max(1, int(nodes * train_share)), replace=False)] = True
    val = ~train & (np.arange(nodes) % 2 == 0)
    return Graph(
        name="random",
        indptr=matrix.indptr.astype(np.int64),
        indices=matrix.indices.astype(np.int64),
        features=rng.standard_normal((nodes, features)).astype(np.float32),
        labels=rng.integers(0, classes, nodes),
        num_classes=classes,
        train_mask=train,
        val_mask=val,
        test_mask=~train & ~val,
    )


def with_edges(graph: Graph, sources: list[int], targets: list[int]) -> Graph:
    """The same nodes joined by exactly these directed edges (repeats and loops included)."""
    import dataclasses

    order = np.lexsort((sources, targets))
    counts = np.bincount(targets, minlength=graph.num_nodes) if targets else np.zeros(graph.num_nodes, dtype=np.int64)
    return dataclasses.replace(
        graph,
        indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        indices=np.array(sources, dtype=np.int64)[order] if sources else np.zeros(0, dtype=np.int64),
    )
