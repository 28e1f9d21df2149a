"""Every real set has the numbers that its README gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from toolkit.config import Config, Data
from toolkit.graph.data import Graph
from toolkit.graph.facts import measure
from toolkit.graph.features import normalise
from toolkit.graph.registry import DATASETS, load

Real = Callable[[str], Graph]

# nodes, edges, stored edges, features, classes, split, mean degree, max degree, isolated, components, largest of
# them, same-class edges, largest class
TABLE: dict[str, tuple[Any, ...]] = {
    "cora": (2708, 5278, 10858, 1433, 7, (140, 500, 1000), 3.9, 168, 0, 78, 2485, 0.81, 0.30),
    "citeseer": (3327, 4552, 9464, 3703, 6, (120, 500, 1000), 2.7, 99, 48, 438, 2120, 0.74, 0.21),
    "pubmed": (19717, 44324, 88676, 500, 3, (60, 500, 1000), 4.5, 171, 0, 1, 19717, 0.80, 0.40),
    "amazon_computers": (13752, 245861, 287209, 767, 10, (200, 300, 13252), 35.8, 2992, 281, 314, 13381, 0.78, 0.38),
    "coauthor_physics": (34493, 247962, 495924, 8415, 5, (100, 150, 34243), 14.4, 382, 0, 1, 34493, 0.93, 0.51),
    "wordnet": (117659, 183789, 377592, 7809, 45, (70595, 23532, 23532), 3.1, 674, 1009, 1377, 115426, 0.71, 0.12),
    "cnr_2000": (325557, 2738969, 3216152, 64, 10, (200, 300, 325057), 16.8, 18236, 0, 1, 325557, None, None),
}


@pytest.mark.parametrize("name", TABLE)
def test_numbers_of_the_tables(real: Real, name: str) -> None:
    graph = real(name)
    facts = measure(graph)
    nodes, edges, stored, features, classes, split, mean, highest, isolated, components, largest, same, top = TABLE[
        name
    ]
    assert (facts.nodes, facts.edges, graph.num_features, graph.num_classes) == (nodes, edges, features, classes)
    assert facts.directed_edges == 2 * edges
    assert facts.split == split
    assert (round(facts.mean_degree, 1), facts.max_degree, facts.isolated) == (mean, highest, isolated)
    assert (facts.components, facts.largest_component) == (components, largest)
    assert any(note.startswith(f"edges: {stored:,} as stored") for note in graph.notes)
    if same is not None:
        assert facts.same_class_edges is not None and facts.largest_class is not None
        assert (round(facts.same_class_edges, 2), round(facts.largest_class, 2)) == (same, top)
        assert sp.issparse(graph.features) and graph.features.dtype == np.float32


@pytest.mark.parametrize("name", TABLE)
def test_the_registry_lists_the_same_numbers(name: str) -> None:
    nodes, edges, _, features, classes, *_ = TABLE[name]
    entry = DATASETS[name]
    assert (entry.nodes, entry.edges) == (nodes, edges)
    assert (entry.features, entry.classes) == ((features, classes) if entry.complete else (None, None))


def test_the_web_graph_has_its_self_loops(data_root: Path) -> None:
    data = Data(name="cnr_2000", root=str(data_root), make_up=True, self_loops="keep", symmetrise=False, features=1)
    graph = load(Config(data=data))
    targets = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    assert graph.num_edges == 3_216_152 and (targets == graph.indices).sum() == 87_442
    assert any("features are made up" in note for note in graph.notes)


def test_citeseer_has_fifteen_nodes_without_anything(real: Real) -> None:
    graph = real("citeseer")
    unlabelled = np.flatnonzero(graph.labels == -1)
    features: Any = graph.features
    assert len(unlabelled) == 15 and features[unlabelled].nnz == 0
    assert not (graph.train_mask | graph.val_mask | graph.test_mask)[unlabelled].any()


@pytest.mark.parametrize(
    ("name", "values"), [("cora", {1.0}), ("citeseer", {1.0}), ("amazon_computers", {1.0}), ("wordnet", {1.0})]
)
def test_binary_features(real: Real, name: str, values: set[float]) -> None:
    assert set(np.unique(np.asarray(real(name).features.data)).tolist()) == values


def test_coauthor_features_are_counts(real: Real) -> None:
    values = np.asarray(real("coauthor_physics").features.data)
    assert (values == np.round(values)).all() and values.max() > 1


@pytest.mark.parametrize(("name", "floor"), [("cora", 0.803), ("citeseer", 0.680), ("pubmed", 0.779)])
def test_softmax_regression_reaches_the_readme_accuracy(real: Real, name: str, floor: float) -> None:
    """On twice smoothed features, at least the README's number; a loader that mixes up rows comes nowhere near it."""
    graph = real(name)
    n = graph.num_nodes
    edges = sp.csr_matrix((np.ones(graph.num_edges), graph.indices, graph.indptr), shape=(n, n)) + sp.eye_array(n)
    scale = sp.diags_array(1 / np.sqrt(np.asarray(edges.sum(axis=1)).ravel()))
    smooth = scale @ edges @ scale
    rows = sp.csr_matrix(smooth @ (smooth @ normalise(graph.features, "row", name)))
    model = LogisticRegression(C=100, max_iter=300).fit(rows[graph.train_mask], graph.labels[graph.train_mask])
    assert model.score(rows[graph.test_mask], graph.labels[graph.test_mask]) >= floor
