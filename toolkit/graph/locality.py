"""Numbering nodes so that neighbours lie near in memory: the sparse product is as fast as its cache misses.

Nodes are ordered by the blocks of a recursive METIS bisection of their part: neighbouring blocks get
neighbouring numbers. Measured on one core, 256 columns, file order against this one (bench/locality.py).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from toolkit.graph.data import Graph, IntArray
from toolkit.graph.messages import row_entries

NODES_PER_BLOCK = 1024  # 1 MB of 256 columns: a block and its neighbours fit a core's L2 cache


def local_order(graph: Graph, nodes: IntArray) -> IntArray:
    """``nodes`` (ascending global ids of one part) in an order of locality; the same set, the same seed."""
    blocks = len(nodes) // NODES_PER_BLOCK
    if blocks < 2:
        return nodes
    import pymetis

    place = np.full(graph.num_nodes, -1, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    sources = place[graph.indices[row_entries(graph.indptr, nodes)]]
    targets = np.repeat(np.arange(len(nodes)), graph.in_degrees()[nodes])
    inside = sources >= 0
    adjacency = undirected(sources[inside], targets[inside], len(nodes))
    found = pymetis.part_graph(
        blocks,
        pymetis.CSRAdjacency(adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.int64)),
        options=pymetis.Options(seed=1),
        recursive=True,
    )
    return nodes[np.argsort(np.asarray(found.vertex_part), kind="stable")]


def undirected(sources: IntArray, targets: IntArray, nodes: int) -> sp.csr_matrix:
    """Both directions of every edge, no loops, no repeats: METIS misbehaves on anything else. [nodes, nodes]."""
    ones = np.ones(len(sources), dtype=np.int32)  # repeats add up: nothing narrower
    directed = sp.csr_matrix((ones, (targets, sources)), shape=(nodes, nodes))
    both = (directed + directed.T).tocsr()
    both.setdiag(0)
    both.eliminate_zeros()
    both.sum_duplicates()
    return both
