"""Which rows cross between parts: the messages of a partition, and how far they are from the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.graph.data import Graph, IntArray

FAR = 64
"""Hops are counted up to here. A cap only ever sends more rows than needed, never fewer."""


def hops_to_training(graph: Graph) -> NDArray[np.int16]:
    """For each node the least number of layers after which its value reaches a training node: [n] int16.

    0 at training nodes, 1 at their in-neighbours, and so on; FAR where farther or never. The
    output of layer l of L matters to the loss only where hops <= L - 1 - l: this is what prunes
    the send lists while training, exactly.
    """
    hops = np.full(graph.num_nodes, FAR, dtype=np.int16)
    frontier = np.flatnonzero(graph.train_mask)
    hops[frontier] = 0
    for level in range(1, FAR):
        sources = graph.indices[row_entries(graph.indptr, frontier)]
        frontier = np.unique(sources[hops[sources] == FAR])
        if not len(frontier):
            break
        hops[frontier] = level
    return hops


def row_entries(indptr: IntArray, rows: IntArray) -> IntArray:
    """Positions in ``indices`` of all entries of the given CSR rows."""
    counts = indptr[rows + 1] - indptr[rows]
    starts = np.repeat(indptr[rows] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return starts + np.arange(counts.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Every (node, receiver) pair of a partition, ordered by receiver, then owner, then node.

    ``reach`` is the least hops_to_training among the receiver's targets of that node.
    """

    nodes: IntArray  # [M] global ids
    owners: IntArray  # [M]
    receivers: IntArray  # [M]
    reach: NDArray[np.int16]  # [M]

    def channel_sums(self, ranks: int, weight_by_reach: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of weights per channel: [ranks, ranks], row the sender, column the receiver.

        ``weight_by_reach[t]`` is what a message of reach t costs; farther ones cost the last entry.
        """
        weights = weight_by_reach[np.minimum(self.reach, len(weight_by_reach) - 1)]
        channels = self.owners * ranks + self.receivers
        sums = np.bincount(channels, weights=weights, minlength=ranks * ranks)
        return sums.astype(np.float64).reshape(ranks, ranks)


def find_messages(graph: Graph, parts: IntArray, hops: NDArray[np.int16]) -> Messages:
    """All messages of the partition ``parts`` ([n] rank of each node)."""
    targets = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    crossing = parts[graph.indices] != parts[targets]
    nodes, targets = graph.indices[crossing], targets[crossing]
    ranks = int(parts.max()) + 1
    keys = (parts[targets] * ranks + parts[nodes]) * graph.num_nodes + nodes  # receiver, owner, node in one number
    order = np.argsort(keys, kind="stable")
    keys, first = np.unique(keys[order], return_index=True)
    channels, nodes = np.divmod(keys, graph.num_nodes)
    receivers, owners = np.divmod(channels, ranks)
    reach = np.minimum.reduceat(hops[targets[order]], first) if len(first) else hops[:0]
    return Messages(nodes=nodes, owners=owners, receivers=receivers, reach=reach)
