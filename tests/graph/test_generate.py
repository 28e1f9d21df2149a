from __future__ import annotations

import builtins
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from toolkit.config import Data
from toolkit.graph.facts import measure
from toolkit.graph.generate import digits, made_up, rmat, sbm
from toolkit.graph.prepare import prepare
from toolkit.graph.raw import Raw

from .helpers import refused


def block_model(seed: int = 0, **changes: Any) -> Raw:
    settings = {"nodes": 3000, "edges": 20_000, "features": 16, "classes": 6, "mixing": 0.2, "noise": 1.0}
    return sbm(**(settings | changes), seed=seed)


def same(one: Raw, other: Raw) -> bool:
    keys = ("sources", "targets", "features", "labels")
    return all(np.array_equal(getattr(one, key), getattr(other, key)) for key in keys)


@pytest.mark.parametrize(
    "make",
    [block_model, lambda seed: rmat(1000, 5000, seed), lambda seed: made_up(rmat(1000, 5000, 0), 8, 4, 1.0, seed)],
    ids=["sbm", "rmat", "made_up"],
)
def test_the_seed_decides(make: Any) -> None:
    assert same(make(1), make(1))
    assert not same(make(1), make(2))


def test_digits() -> None:
    raw = digits(8)
    assert (raw.num_nodes, raw.sources.shape, raw.num_classes) == (1797, (1797 * 8,), 10)
    features: Any = raw.features
    assert features.shape == (1797, 64) and features.min() == 0 and features.max() == 1
    assert not (raw.sources == raw.targets).any()
    node = 5
    distances = ((features.astype(np.float64) - features[node]) ** 2).sum(axis=1)
    distances[node] = np.inf
    chosen = raw.sources[raw.targets == node]
    assert sorted(distances[chosen]) == sorted(distances)[:8]
    assert same(raw, digits(8))


def test_digits_are_refused_too_many_neighbours() -> None:
    with refused("data.knn is 1797", "at most 1796"):
        digits(1797)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with refused("needs scikit-learn", "pip install scikit-learn"):
        digits(8)


def test_sbm_sizes_and_planted_classes() -> None:
    raw = block_model()
    assert raw.num_nodes == 3000 and raw.sources.shape == raw.targets.shape == (20_000,)
    assert raw.labels is not None and np.bincount(raw.labels).tolist() == [500] * 6
    assert raw.features is not None and raw.features.shape == (3000, 16) and raw.features.dtype == np.float32
    assert min(raw.sources.min(), raw.targets.min()) >= 0 and max(raw.sources.max(), raw.targets.max()) < 3000
    assert any("generated" in note and "seed 0" in note for note in raw.notes)


def test_same_class_edges_fall_with_mixing_as_the_model_says() -> None:
    for mixing in (0.0, 0.3, 0.6, 1.0):
        raw = block_model(mixing=mixing)
        assert raw.labels is not None
        share = (raw.labels[raw.sources] == raw.labels[raw.targets]).mean()
        # Each class holds a sixth of the nodes, but not exactly a sixth of the weight.
        assert share == pytest.approx(1 - mixing + mixing / 6, abs=0.02)


def test_sbm_degrees_are_skewed() -> None:
    raw = block_model()
    degrees = np.bincount(raw.sources, minlength=3000) + np.bincount(raw.targets, minlength=3000)
    assert degrees.max() > 8 * degrees.mean() and np.median(degrees) < degrees.mean()


def test_noise_hides_the_class_of_a_node_but_not_of_its_neighbourhood() -> None:
    graph = prepare(block_model(mixing=0.1), Data())
    features: Any = graph.features
    centres = np.array([features[graph.labels == label].mean(axis=0) for label in range(6)])
    smoothed = np.array(
        [
            features[graph.indices[a:b]].mean(axis=0)
            for a, b in zip(graph.indptr, graph.indptr[1:], strict=False)
            if b > a
        ]
    )
    known = graph.labels[graph.in_degrees() > 0]
    alone, together = (
        (rows @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1) for rows in (features, smoothed)
    )
    assert (alone == graph.labels).mean() < 0.65 < 0.8 < (together == known).mean()


def test_no_noise_gives_the_centre_itself() -> None:
    raw = block_model(noise=0.0)
    assert raw.labels is not None and isinstance(raw.features, np.ndarray)
    rows = raw.features[raw.labels == 2]
    assert (rows == rows[0]).all() and np.linalg.norm(rows[0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("nodes", "edges", "classes"), [(1, 3, 1), (2, 0, 2), (7, 40, 7)])
def test_the_smallest_graphs(nodes: int, edges: int, classes: int) -> None:
    raw = block_model(nodes=nodes, edges=edges, classes=classes)
    assert len(raw.sources) == edges and set(raw.targets.tolist()) <= set(range(nodes))
    assert len(rmat(nodes, edges, 0).sources) == edges
    assert made_up(rmat(nodes, edges, 0), 3, classes, 1.0, 0).labels is not None


def test_sizes_that_can_not_be_made() -> None:
    with refused("data.classes is 6, more than data.nodes 5"):
        block_model(nodes=5)
    for make in (lambda nodes: rmat(nodes, 1, 0), lambda nodes: block_model(nodes=nodes)):
        with refused("data.nodes is 2147483648"):
            make(2**31)


@pytest.mark.parametrize("nodes", [1000, 1024, 1025])
def test_rmat_takes_any_number_of_nodes(nodes: int) -> None:
    raw = rmat(nodes, 20_000, 0)
    ids = np.concatenate([raw.sources, raw.targets])
    assert len(raw.sources) == 20_000 and ids.min() >= 0 and ids.max() < nodes
    assert len(np.unique(ids)) > nodes / 2
    degrees = np.bincount(ids, minlength=nodes)
    assert degrees.max() > 10 * degrees.mean()


def test_rmat_quadrants_have_their_share() -> None:
    from toolkit.graph.generate import _rmat_edges

    sources, targets = _rmat_edges(200_000, 3, np.random.default_rng(0))
    for bit in (1, 2, 4):
        shares = np.bincount(2 * ((sources & bit) > 0) + ((targets & bit) > 0)) / 200_000
        np.testing.assert_allclose(shares, (0.57, 0.19, 0.19, 0.05), atol=0.005)


def test_rmat_numbers_are_shuffled() -> None:
    raw = rmat(4096, 40_000, 0)
    low = (raw.sources < 2048).mean()
    assert 0.4 < low < 0.6  # unshuffled, 0.76 of the sources lie in the lower half


def test_made_up_labels_follow_the_graph() -> None:
    raw = made_up(rmat(2000, 20_000, 0), 8, 5, 1.0, 0)
    facts = measure(prepare(raw, Data(split="ratio")))
    assert raw.labels is not None and len(np.unique(raw.labels)) == 5
    shuffled = replace(raw, labels=np.random.default_rng(0).permutation(raw.labels))
    by_chance = measure(prepare(shuffled, Data(split="ratio"))).same_class_edges
    assert facts.same_class_edges is not None and by_chance is not None
    # This graph is dense and full of hubs; sparser ones reach more than twice what chance gives.
    assert facts.same_class_edges > 1.5 * by_chance
    assert facts.largest_class is not None and facts.largest_class < 0.5


def test_made_up_features_leave_nodes_without_label_to_noise() -> None:
    raw = replace(rmat(50, 100, 0), labels=np.repeat([-1, 0], 25), num_classes=1)
    features = made_up(raw, 4, 9, 0.0, 0).features
    assert features is not None and (features[:25] == 0).all() and (features[25:] != 0).all()
