from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.config import Data
from toolkit.graph.data import Graph
from toolkit.graph.prepare import prepare
from toolkit.graph.raw import Masks, Raw

from .helpers import refused, small

RATIO = Data(split="ratio")


@st.composite
def raws(draw: Any) -> Raw:
    """Up to nine nodes with any edges among them: repeats, self-loops and isolated nodes included."""
    nodes = draw(st.integers(2, 9))
    ends = st.integers(0, nodes - 1)
    edges = np.array(draw(st.lists(st.tuples(ends, ends), max_size=30)), np.int64).reshape(-1, 2)
    return Raw(
        name="any",
        num_nodes=nodes,
        sources=edges[:, 0],
        targets=edges[:, 1],
        features=np.ones((nodes, 1)),
        labels=np.zeros(nodes, np.int64),
    )


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    """(target, source) of each edge, in the order held."""
    targets = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    return list(zip(targets.tolist(), graph.indices.tolist(), strict=True))


@given(raws(), st.booleans(), st.sampled_from(["drop", "keep"]), st.sampled_from(["drop", "keep"]))
@settings(max_examples=200, deadline=None)
def test_edges_equal_the_plain_definition(raw: Raw, symmetrise: bool, self_loops: Any, duplicates: Any) -> None:
    data = Data(symmetrise=symmetrise, self_loops=self_loops, duplicates=duplicates, split="ratio")
    expected = []
    for source, target in zip(raw.sources.tolist(), raw.targets.tolist(), strict=True):
        if source != target or self_loops == "keep":
            expected.append((target, source))
        if source != target and symmetrise:
            expected.append((source, target))
    if duplicates == "drop":
        expected = list(set(expected))
    assert edges_of(prepare(raw, data)) == sorted(expected)


@given(raws(), st.sampled_from(["drop", "keep"]))
@settings(max_examples=100, deadline=None)
def test_preparing_twice_changes_nothing(raw: Raw, self_loops: Any) -> None:
    data = Data(self_loops=self_loops, split="ratio")
    once = prepare(raw, data)
    edges = np.array(edges_of(once), np.int64).reshape(-1, 2)
    twice = prepare(small_like(raw, edges[:, 1], edges[:, 0]), data)
    assert edges_of(twice) == edges_of(once)
    assert twice.indptr.dtype == twice.indices.dtype == np.int64


@given(raws())
@settings(max_examples=100, deadline=None)
def test_symmetrised_is_symmetric_and_sorted(raw: Raw) -> None:
    graph = prepare(raw, RATIO)
    edges = edges_of(graph)
    assert {(source, target) for target, source in edges} == set(edges)
    assert edges == sorted(set(edges)) and graph.indptr[0] == 0 and graph.indptr[-1] == len(graph.indices)


def small_like(raw: Raw, sources: Any, targets: Any) -> Raw:
    return Raw(
        name=raw.name,
        num_nodes=raw.num_nodes,
        sources=sources,
        targets=targets,
        features=raw.features,
        labels=raw.labels,
    )


def test_an_edge_is_held_by_its_target() -> None:
    raw = small(sources=np.array([4]), targets=np.array([2]))
    assert edges_of(prepare(raw, Data(symmetrise=False, split="ratio"))) == [(2, 4)]


def test_a_graph_without_edges_and_a_graph_of_one_node() -> None:
    none = np.array([], np.int64)
    assert prepare(small(sources=none, targets=none), RATIO).indptr.tolist() == [0] * 7
    one = small(num_nodes=1, sources=none, targets=none, features=np.ones((1, 1)), labels=np.array([0]))
    assert prepare(one, RATIO).num_nodes == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_nodes": 0}, ("small has 0 nodes", "needs 1 to")),
        ({"num_nodes": 2**31}, ("small has 2147483648 nodes",)),
        ({"sources": np.arange(4)}, ("[4] sources and [5] targets",)),
        ({"sources": np.array([0, 1, 6, 2, 9])}, ("edge 2 has the source 6", "0 .. 5")),
        ({"targets": np.array([0, -1, 0, 0, 0])}, ("edge 1 has the target -1", "0 .. 5")),
        ({"features": None}, ("small has no features", "data.make_up = true")),
        ({"labels": None}, ("small has no labels", "data.make_up = true")),
        ({"labels": None, "features": None}, ("small has no features and labels",)),
        ({"features": np.ones((5, 2))}, ("features have 5 rows for 6 nodes",)),
        ({"labels": np.zeros(5, np.int64)}, ("labels are int64 [5]", "6 nodes")),
        ({"labels": np.zeros(6)}, ("labels are float64 [6]",)),
        ({"labels": np.array([0, 1, 0, -2, 0, 0])}, ("node 3 has the label -2",)),
        ({"labels": np.array([0, 1, 3, 0, 0, 0]), "num_classes": 3}, ("node 2 has the label 3", "0 .. 2")),
        ({"labels": np.array([0, 1, 10**9, 0, 0, 0])}, ("node 2 has the label 1000000000 in a graph of 6 nodes",)),
        ({"labels": np.full(6, -1)}, ("no node is trained on, 0 have a label",)),
        ({"masks": Masks(*[np.zeros(6, bool)] * 3)}, ("no node is trained on, 6 have a label",)),
    ],
)
def test_what_can_not_be_trained_on_is_refused(changes: dict[str, Any], says: tuple[str, ...]) -> None:
    data = Data(split="file") if "masks" in changes else RATIO
    with refused(*says):
        prepare(small(**changes), data)


def test_make_up_fills_only_what_is_missing_and_says_so() -> None:
    data = Data(split="ratio", make_up=True, features=4, classes=2)
    both = prepare(small(features=None, labels=None), data)
    assert both.num_features == 4 and both.num_classes == 2
    assert [note.split(" are made up")[0] for note in both.notes if "made up" in note] == ["labels", "features"]
    labels_kept = prepare(small(features=None), data)
    assert labels_kept.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert [note.split(" are made up")[0] for note in labels_kept.notes if "made up" in note] == ["features"]
    complete = prepare(small(), data)
    assert not any("made up" in note for note in complete.notes)


def test_made_up_features_check_the_labels_first() -> None:
    with refused("node 0 has the label 9"):
        prepare(small(features=None, labels=np.full(6, 9), num_classes=3), Data(make_up=True))


def test_notes_tell_what_was_done_to_the_edges() -> None:
    raw = small(sources=np.array([0, 0, 1, 2]), targets=np.array([1, 1, 0, 2]), notes=("from the file",))
    notes = prepare(raw, RATIO).notes
    assert notes[0] == "from the file"
    assert "edges: 4 as stored, 2 directed ones used (symmetrised, self-loops dropped, repeats dropped)" in notes
    kept = prepare(raw, Data(split="ratio", symmetrise=False, self_loops="keep", duplicates="keep")).notes
    assert "edges: 4 as stored, 4 directed ones used (self-loops kept, repeats kept)" in kept


def test_projection_and_split_are_noted() -> None:
    notes = prepare(small(), Data(split="ratio", project_to=2, generator_seed=5, split_seed=7)).notes
    assert "features are projected at random from 3 to 2 columns, seed 5" in notes
    assert "random split: 0.6 training, 0.2 validation, seed 7" in notes
