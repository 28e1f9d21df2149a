"""What one rank owns: its nodes, the halo it receives, the rows it sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.graph.data import BoolArray, Features, Graph, IntArray, Labels
from toolkit.graph.locality import local_order
from toolkit.graph.messages import find_messages, hops_to_training, row_entries

PART_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One rank's share of a graph: n inner nodes, h halo nodes, m rows to send, N ranks.

    Columns of the local CSR adjacency number the inner nodes 0 .. n-1, then the halo nodes
    n .. n+h-1. Halo nodes are ordered by owner, then global id; ``send_rows`` by receiver, then
    global id: so the rows that rank s sends to r stand in the order in which r keeps them.
    """

    rank: int
    ranks: int
    graph_name: str
    num_nodes: int  # of the whole graph, as are the next four
    num_classes: int
    num_train: int
    num_val: int
    num_test: int
    nodes: IntArray  # [n] global ids, in an order of locality
    halo_nodes: IntArray  # [h] global ids
    halo_counts: IntArray  # [N] halo nodes of each owner
    halo_reach: NDArray[np.int16]  # [h] see Messages.reach
    send_rows: IntArray  # [m] inner node (local number) of each row sent
    send_counts: IntArray  # [N] rows to each receiver
    send_reach: NDArray[np.int16]  # [m]
    indptr: IntArray  # [n + 1]
    indices: IntArray  # local in-neighbours
    in_degrees: IntArray  # [n] in the whole graph, self-loops not counted
    halo_in_degrees: IntArray  # [h]
    hops: NDArray[np.int16]  # [n] see hops_to_training
    features: Features  # [n, D]
    labels: Labels  # [n], or [n, C] multi-hot
    train_mask: BoolArray  # [n]
    val_mask: BoolArray  # [n]
    test_mask: BoolArray  # [n]

    @property
    def num_inner(self) -> int:
        return len(self.nodes)

    @property
    def num_halo(self) -> int:
        return len(self.halo_nodes)

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    def marginal(self) -> BoolArray:
        """Inner nodes with a remote in-neighbour: [n]. The others are central."""
        targets = np.repeat(np.arange(self.num_inner), np.diff(self.indptr))
        marked: BoolArray = np.zeros(self.num_inner, dtype=np.bool_)
        marked[targets[self.indices >= self.num_inner]] = True
        return marked


def whole(graph: Graph) -> Part:
    """The graph as the only part of one process."""
    return next(build_parts(graph, np.zeros(graph.num_nodes, dtype=np.int64), 1))


def build_parts(graph: Graph, parts: IntArray, ranks: int) -> Iterator[Part]:
    """Cut ``graph`` by ``parts`` ([n] rank of each node); parts come one at a time, rank 0 first."""
    hops = hops_to_training(graph)
    messages = find_messages(graph, parts, hops)
    row_lengths = graph.in_degrees()
    targets = np.repeat(np.arange(graph.num_nodes), row_lengths)
    degrees = np.bincount(targets[graph.indices != targets], minlength=graph.num_nodes)
    local_of_global = np.empty(graph.num_nodes, dtype=np.int64)
    for rank in range(ranks):
        nodes = local_order(graph, np.flatnonzero(parts == rank))
        receives = messages.receivers == rank
        halo_nodes = messages.nodes[receives]
        sends = np.flatnonzero(messages.owners == rank)  # by receiver, then node: the order of Messages
        local_of_global[nodes] = np.arange(len(nodes))
        send_rows = local_of_global[messages.nodes[sends]]
        local_of_global[halo_nodes] = len(nodes) + np.arange(len(halo_nodes))
        entries = row_entries(graph.indptr, nodes)
        yield Part(
            rank=rank,
            ranks=ranks,
            graph_name=graph.name,
            num_nodes=graph.num_nodes,
            num_classes=graph.num_classes,
            num_train=int(graph.train_mask.sum()),
            num_val=int(graph.val_mask.sum()),
            num_test=int(graph.test_mask.sum()),
            nodes=nodes,
            halo_nodes=halo_nodes,
            halo_counts=np.bincount(messages.owners[receives], minlength=ranks),
            halo_reach=messages.reach[receives],
            send_rows=send_rows,
            send_counts=np.bincount(messages.receivers[sends], minlength=ranks),
            send_reach=messages.reach[sends],
            indptr=np.concatenate(([0], np.cumsum(row_lengths[nodes]))),
            indices=local_of_global[graph.indices[entries]],
            in_degrees=degrees[nodes],
            halo_in_degrees=degrees[halo_nodes],
            hops=hops[nodes],
            features=graph.features[nodes],
            labels=graph.labels[nodes],
            train_mask=graph.train_mask[nodes],
            val_mask=graph.val_mask[nodes],
            test_mask=graph.test_mask[nodes],
        )


def save(part: Part, path: Path) -> None:
    """Write one part as an uncompressed npz without pickles. The caller renames it into place."""
    arrays: dict[str, NDArray[np.generic]] = {"format": np.array(PART_FORMAT)}
    for f in fields(part):
        value = getattr(part, f.name)
        if isinstance(value, sp.csr_matrix):
            arrays["features_data"], arrays["features_indices"] = value.data, value.indices
            arrays["features_indptr"], arrays["features_shape"] = value.indptr, np.array(value.shape)
        else:
            arrays[f.name] = np.asarray(value)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load(path: Path) -> Part:
    """Read what save() wrote."""
    with np.load(path, allow_pickle=False) as file:
        values = {key: file[key] for key in file.files}
    values.pop("format")
    if "features_data" in values:
        data, indices, indptr, shape = (
            values.pop(f"features_{name}") for name in ("data", "indices", "indptr", "shape")
        )
        values["features"] = sp.csr_matrix((data, indices, indptr), shape=tuple(shape))
    return Part(**{key: value.item() if value.ndim == 0 else value for key, value in values.items()})
