"""A graph written in any format is read as the same graph."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.config import Config, Data
from toolkit.graph import registry
from toolkit.graph.npz import read_npz, write_npz, write_raw
from toolkit.graph.nx import from_networkx
from toolkit.graph.part import build_parts
from toolkit.graph.part import load as load_part
from toolkit.graph.part import save as save_part
from toolkit.graph.prepare import prepare
from toolkit.graph.pyg import from_pyg
from toolkit.graph.raw import Masks, Raw
from toolkit.graph.registry import fingerprint

from . import writers
from .writers import AS_STORED, arrays_sha256, random_raw


def by_path(path: Path, **settings: Any) -> str:
    """The digest of what the whole way from configuration to graph reads at ``path``."""
    data = replace(AS_STORED, name="file", path=str(path), **settings)
    assert len(fingerprint(data)) == 64
    from toolkit.graph import foreign

    return arrays_sha256(foreign.read(data), data)


def through_npz(folder: Path, raw: Raw) -> str:
    write_raw(folder / "own.npz", raw)
    return by_path(folder / "own.npz")


WAYS = {
    "npz": through_npz,
    "csv": lambda folder, raw: by_path(writers.arrays(folder / "f", raw)),
    "tsv.gz": lambda folder, raw: by_path(writers.arrays(folder / "f", raw, "edges.tsv.gz", "\t")),
    "txt": lambda folder, raw: by_path(writers.arrays(folder / "f", raw, "edges.txt", " ")),
    "semicolon": lambda folder, raw: by_path(
        writers.arrays(folder / "f", raw, "edges.txt", ";"), delimiter="semicolon"
    ),
    "npy": lambda folder, raw: by_path(writers.arrays(folder / "f", raw, "edges.npy")),
    "sparse": lambda folder, raw: by_path(writers.arrays(folder / "f", raw, sparse=True)),
    "graphsaint": lambda folder, raw: by_path(writers.graphsaint(folder / "f", raw)),
    "ogb": lambda folder, raw: by_path(writers.ogb(folder / "f", raw)),
    "ogb binary": lambda folder, raw: by_path(writers.ogb(folder / "f", raw, binary=True)),
    "heterophilous": lambda folder, raw: by_path(writers.heterophilous(folder / "f.npz", raw)),
    "pyg": lambda folder, raw: arrays_sha256(from_pyg(writers.pyg(raw))),
    "networkx": lambda folder, raw: (lambda graph, more: arrays_sha256(from_networkx(graph, **more)))(
        *writers.networkx(raw)
    ),
}
SINGLE_LABELS_ONLY = {"heterophilous"}
ONE_SPLIT_ONLY = {"graphsaint"}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(1, 12),
    edges=st.integers(0, 40),
    labels=st.sampled_from(["single", "multi"]),
    splits=st.integers(0, 3),
)
def test_what_is_written_is_read(way: str, seed: int, nodes: int, edges: int, labels: str, splits: int) -> None:
    labels = "single" if way in SINGLE_LABELS_ONLY else labels
    raw = random_raw(seed, nodes, edges, labels, 0 if way in ONE_SPLIT_ONLY else splits)
    with tempfile.TemporaryDirectory() as folder:
        assert WAYS[way](Path(folder), raw) == arrays_sha256(raw)


@pytest.mark.parametrize("way", ["npz", "csv", "ogb", "ogb binary", "heterophilous"])
def test_each_of_several_splits_is_read(way: str, tmp_path: Path) -> None:
    raw = random_raw(3, splits=3)
    assert raw.masks is not None
    digests = set()
    for index in range(3):
        one = replace(raw, masks=Masks(*(mask[index] for mask in raw.masks)))
        WAYS[way](tmp_path, raw)
        path = tmp_path / ("own.npz" if way == "npz" else "f.npz" if way == "heterophilous" else "f")
        assert by_path(path, split_index=index) == arrays_sha256(one)
        data = Data(name="file", path=str(path), split_index=index)
        assert f"split {index} of the 3 of the data set" in registry.load(Config(data=data)).notes
        digests.add(fingerprint(data))
    assert len(digests) == 3


def test_multi_label_graphs_go_through_our_npz_and_through_parts(tmp_path: Path) -> None:
    raw = random_raw(5, labels="multi")
    graph = prepare(raw, Data())
    assert graph.multi_label and graph.labels.dtype == np.uint8 and graph.num_classes == 3
    write_npz(tmp_path / "own.npz", graph)
    again = prepare(read_npz(tmp_path / "own.npz"), AS_STORED)
    assert again.labels.dtype == np.uint8 and np.array_equal(again.labels, graph.labels)
    owner = np.arange(graph.num_nodes) % 3
    for part in build_parts(graph, owner, 3):
        save_part(part, tmp_path / "part.npz")
        loaded = load_part(tmp_path / "part.npz")
        assert loaded.labels.dtype == np.uint8
        assert np.array_equal(loaded.labels, graph.labels[owner == part.rank])


def test_sparse_features_stay_sparse(tmp_path: Path) -> None:
    raw = random_raw(7)
    writers.arrays(tmp_path / "f", raw, sparse=True)
    graph = registry.load(Config(data=Data(name="folder", path=str(tmp_path / "f"))))
    assert sp.issparse(graph.features) and graph.name == "f"


def test_a_folder_alone_and_made_up_labels(tmp_path: Path) -> None:
    """An edge list and nothing else is a graph whose features and labels are made up knowingly."""
    folder = writers.arrays(tmp_path / "f", replace(random_raw(1), features=None, labels=None, masks=None))
    data = Data(name="folder", path=str(folder), make_up=True, split="ratio", features=8, classes=3)
    graph = registry.load(Config(data=data))
    assert graph.num_features == 8 and graph.num_classes == 3 and any("made up" in note for note in graph.notes)
    assert fingerprint(data) != fingerprint(replace(data, features=9))


def test_features_of_a_multi_label_graph_are_made_up(tmp_path: Path) -> None:
    raw = replace(random_raw(1, labels="multi"), features=None)
    assert raw.labels is not None
    raw.labels[3] = 0
    graph = prepare(raw, Data(make_up=True, features=8))
    assert graph.num_features == 8 and np.array_equal(graph.labels, raw.labels)


def test_auto_split_of_multi_labels_is_by_ratio() -> None:
    raw = replace(random_raw(1, labels="multi"), masks=None)
    graph = prepare(raw, Data())
    assert graph.train_mask.sum() == 18 and any("random split: 0.6 training" in note for note in graph.notes)


@pytest.mark.parametrize("write", [writers.arrays, writers.graphsaint, writers.ogb])
def test_the_fingerprint_is_of_the_files_that_are_read(write: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "f", random_raw(1))
    data = Data(name="folder", path=str(folder))
    before = fingerprint(data)
    (folder / "README").write_text("nobody reads this")
    assert fingerprint(data) == before
    assert fingerprint(replace(data, name="file")) == before
    # whether there are several labels a node, or a split, only reading would tell: all that might matter counts
    assert fingerprint(replace(data, train_ratio=0.5)) != before
    assert fingerprint(replace(data, train_per_class=5)) != before
    moved = folder.rename(tmp_path / "elsewhere")
    assert fingerprint(replace(data, path=str(moved))) == before
    write(moved, random_raw(2))
    assert fingerprint(replace(data, path=str(moved))) != before
