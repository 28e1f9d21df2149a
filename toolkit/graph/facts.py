"""What can be said of a graph in numbers: for `bitring data show`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from toolkit.graph.data import Graph


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
    same_class_edges: float | None  # share of edges whose ends both have a label; None without such an edge
    largest_class: float | None  # share of the nodes that have a label
    unlabelled: int
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
    known = (graph.labels[rows] >= 0) & (graph.labels[columns] >= 0)
    same = graph.labels[rows[known]] == graph.labels[columns[known]]
    per_class = np.bincount(graph.labels[graph.labels >= 0], minlength=1)
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
        largest_class=float(per_class.max() / per_class.sum()) if per_class.sum() else None,
        unlabelled=int((graph.labels < 0).sum()),
        split=(int(graph.train_mask.sum()), int(graph.val_mask.sum()), int(graph.test_mask.sum())),
        feature_density=float(np.count_nonzero(stored) / (n * graph.num_features)),
    )


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
        ("classes", f"{graph.num_classes}; {_share(facts.largest_class)} of the labelled nodes are in the largest"),
        ("without label", f"{facts.unlabelled:,}"),
        ("same-class edges", _share(facts.same_class_edges)),
        ("features", f"{graph.num_features:,} {kind} columns; {_share(facts.feature_density)} of entries are not zero"),
        ("split", "{:,} training, {:,} validation, {:,} test nodes".format(*facts.split)),
    ]
    told = [f"  {key:<17} {text}" for key, text in lines]
    return "\n".join([graph.name, *told, *(f"  note: {note}" for note in graph.notes)])


def _share(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.3g}%"
