"""What can be said of a graph in numbers: for `bitring data show`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from toolkit.graph.data import BoolArray, Graph, IntArray, Labels

_BLOCK_EDGES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Counts of a graph. Edges, degrees and components disregard direction, repeats and self-loops."""

    nodes: int
    directed_edges: int  # as trained on
    edges: int  # distinct, undirected
    mean_degree: float
    max_degree: int
    isolated: int  # nodes without any edge
    components: int
    largest_component: int  # nodes
    same_class_edges: float | None  # share of edges whose ends both have a label; multi-label: that share one
    largest_class: float | None  # share of the nodes that have a label
    unlabelled: int
    labels_per_node: float | None  # of multi-label nodes, mean
    split: tuple[int, int, int]  # training, validation, test nodes
    feature_density: float  # share of entries that aren't zero


def measure(graph: Graph) -> Facts:
    """The facts of ``graph``."""
    n = graph.num_nodes
    # Booleans: scipy adds repeated entries up, and a sum that wraps round to zero would lose an edge.
    directed = sp.csr_matrix((np.ones(graph.num_edges, np.bool_), graph.indices, graph.indptr), shape=(n, n))
    upper = sp.triu(directed, k=1) + sp.tril(directed, k=-1).T
    rows, columns = upper.nonzero()
    degrees = np.bincount(rows, minlength=n) + np.bincount(columns, minlength=n)
    components, member = connected_components(directed, directed=False)
    labelled = np.asarray(graph.labels.any(axis=1) if graph.multi_label else graph.labels >= 0)
    known = labelled[rows] & labelled[columns]
    same = _same_class(graph.labels, rows[known], columns[known])
    per_class = graph.labels.sum(axis=0) if graph.multi_label else np.bincount(graph.labels[labelled], minlength=1)
    features: Any = graph.features
    stored = features.data if sp.issparse(features) else features
    return Facts(
        nodes=n,
        directed_edges=graph.num_edges,
        edges=len(rows),
        mean_degree=2 * len(rows) / n,
        max_degree=int(degrees.max()),
        isolated=int((degrees == 0).sum()),
        components=int(components),
        largest_component=int(np.bincount(member).max()),
        same_class_edges=float(same.mean()) if len(same) else None,
        largest_class=float(per_class.max() / labelled.sum()) if labelled.any() else None,
        unlabelled=int((~labelled).sum()),
        labels_per_node=float(graph.labels.sum() / n) if graph.multi_label else None,
        split=(int(graph.train_mask.sum()), int(graph.val_mask.sum()), int(graph.test_mask.sum())),
        feature_density=float(np.count_nonzero(stored) / (n * graph.num_features)),
    )


def _same_class(labels: Labels, rows: IntArray, columns: IntArray) -> BoolArray:
    """Whether the ends of each edge have a class in common."""
    if labels.ndim == 1:
        equal: BoolArray = labels[rows] == labels[columns]
        return equal
    made = np.empty(len(rows), np.bool_)
    for start in range(0, len(rows), _BLOCK_EDGES):  # rows of labels are copied for so many edges at a time
        block = slice(start, start + _BLOCK_EDGES)
        made[block] = (labels[rows[block]] & labels[columns[block]]).any(axis=1)
    return made


def show_text(graph: Graph) -> str:
    """The facts of ``graph`` and its notes, one a line."""
    facts = measure(graph)
    kind = "sparse" if sp.issparse(graph.features) else "dense"
    lines = [
        ("nodes", f"{facts.nodes:,}"),
        ("edges", f"{facts.edges:,} undirected; {facts.directed_edges:,} directed ones are trained on"),
        ("degree", f"{facts.mean_degree:.1f} on average, {facts.max_degree:,} at most"),
        ("isolated nodes", f"{facts.isolated:,}"),
        ("components", f"{facts.components:,}, the largest of {facts.largest_component:,} nodes"),
        ("classes", _classes(graph, facts)),
        ("without label", f"{facts.unlabelled:,}"),
        ("same-class edges", _share(facts.same_class_edges)),
        ("features", f"{graph.num_features:,} {kind} columns; {_share(facts.feature_density)} of entries are not zero"),
        ("split", "{:,} training, {:,} validation, {:,} test nodes".format(*facts.split)),
    ]
    told = [f"  {key:<17} {text}" for key, text in lines]
    return "\n".join([graph.name, *told, *(f"  note: {note}" for note in graph.notes)])


def _classes(graph: Graph, facts: Facts) -> str:
    if facts.labels_per_node is None:
        return f"{graph.num_classes}; {_share(facts.largest_class)} of the labelled nodes are in the largest"
    return (
        f"{graph.num_classes}, several a node, {facts.labels_per_node:.2f} on average; "
        f"{_share(facts.largest_class)} of the labelled nodes have the most frequent"
    )


def _share(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.3g}%"
