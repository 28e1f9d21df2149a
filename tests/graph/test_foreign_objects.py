"""Graphs taken over from the objects of PyTorch Geometric, OGB and networkx."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data as PygData
from torch_geometric.data import HeteroData
from torch_geometric.datasets import FakeDataset

from toolkit.config import Data
from toolkit.graph.nx import from_networkx
from toolkit.graph.prepare import prepare
from toolkit.graph.pyg import from_pyg
from toolkit.graph.raw import Masks

from . import writers
from .helpers import refused
from .writers import arrays_sha256, random_raw


class DataSet(list[Any]):
    """A data set as PyG and OGB have them: no list, in that its graphs are made on the way out."""

    name = "set"


class OgbDataSet(DataSet):
    def get_idx_split(self) -> dict[str, torch.Tensor]:
        return {"train": torch.tensor([0, 1]), "valid": torch.tensor([2]), "test": torch.tensor([3])}


def like(**changes: Any) -> SimpleNamespace:
    given = {
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "x": torch.ones(4, 2),
        "y": torch.tensor([0, 1, 0, 1]),
        "num_nodes": 4,
    }
    return SimpleNamespace(**{**given, **changes})


def test_a_data_set_of_one_graph_is_that_graph() -> None:
    raw = random_raw(1)
    data = writers.pyg(raw)
    assert arrays_sha256(from_pyg(DataSet([data]))) == arrays_sha256(raw)
    assert from_pyg(DataSet([data])).name == "set" and from_pyg(data).name == "data"
    with refused("a data set of 2 graphs", "dataset[i]"):
        from_pyg(DataSet([data, data]))


def test_data_sets_of_pyg_itself() -> None:
    only = FakeDataset(num_graphs=1, avg_num_nodes=40, num_classes=3)
    raw = from_pyg(only)
    assert raw.name == "fakedataset" and raw.num_nodes == only[0].num_nodes
    np.testing.assert_array_equal(np.stack([raw.sources, raw.targets]), only[0].edge_index.numpy())
    with refused("a data set of 5 graphs"):
        from_pyg(FakeDataset(num_graphs=5))


def test_an_ogb_data_set_brings_its_split_and_a_column_of_labels() -> None:
    raw = from_pyg(OgbDataSet([like(y=torch.tensor([[0], [1], [0], [1]]))]))
    assert raw.labels is not None and raw.labels.tolist() == [0, 1, 0, 1] and raw.masks is not None
    assert [np.flatnonzero(mask).tolist() for mask in raw.masks] == [[0, 1], [2], [3]]


def test_unknown_labels_of_a_float_column() -> None:
    raw = from_pyg(like(y=torch.tensor([[0.0], [float("nan")], [1.0], [2.0]])))
    assert raw.labels is not None and raw.labels.tolist() == [0, -1, 1, 2]


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_features(layout: str) -> None:
    dense = torch.tensor([[0.0, 2], [1, 0], [0, 0], [3, 4]])
    raw = from_pyg(like(x=dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()))
    assert sp.issparse(raw.features) and (raw.features.toarray() == dense.numpy()).all()


def test_one_test_mask_for_several_training_masks() -> None:
    """As WikiCS has it."""
    several = torch.tensor([[True, False], [False, True], [False, False], [False, False]])
    raw = from_pyg(like(train_mask=several, val_mask=~several, test_mask=torch.zeros(4, dtype=torch.bool)))
    assert raw.masks is not None and [mask.shape for mask in raw.masks] == [(2, 4)] * 3
    chosen = prepare(raw, Data(split_index=1))
    assert chosen.train_mask.tolist() == [False, True, False, False]


def test_a_missing_validation_mask_is_empty() -> None:
    mask = torch.tensor([True, False, False, False])
    raw = from_pyg(like(train_mask=mask, test_mask=~mask))
    assert raw.masks is not None and not raw.masks.val.any() and raw.masks.test.sum() == 3


def test_what_is_not_used_is_noted() -> None:
    assert from_pyg(like(edge_attr=torch.ones(2))).notes == ("edge_attr of the data is not used",)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (HeteroData(), ("of several types", "to_homogeneous")),
        (PygData(x=torch.ones(3, 2)), ("has no edge_index (none)",)),
        (SimpleNamespace(), ("has no edge_index (none)",)),
        (SimpleNamespace(adj_t=1), ("has no edge_index (adj_t",)),
        (like(edge_index=torch.zeros(3, 2, dtype=torch.long)), ("edge_index has shape [3, 2]",)),
        (like(edge_index=torch.zeros(2, 2)), ("edge_index is float32",)),
        (like(y=torch.tensor([0.5, 1, 2, 3])), ("labels y: node 0 has 0.5",)),
        (like(y=torch.full((4, 3), 2)), ("labels y: node 0 has 2 in column 0",)),
        (like(train_mask=torch.ones(4, dtype=torch.bool)), ("has no test_mask",)),
        (like(train_mask=torch.ones(4), test_mask=torch.ones(4)), ("train_mask is float32 [4]",)),
        (like(train_mask=torch.ones(3, dtype=torch.bool), test_mask=1), ("train_mask is bool [3]",)),
    ],
)
def test_objects_that_do_not_fit(given: Any, says: tuple[str, ...]) -> None:
    with refused(*says):
        from_pyg(given)


def test_an_undirected_networkx_graph_carries_messages_both_ways() -> None:
    graph = nx.karate_club_graph()
    graph.add_edge(3, 3)
    raw = from_networkx(graph, features=np.eye(34), labels=np.arange(34) % 2)
    assert len(raw.sources) == 2 * 78 + 1
    plain = prepare(raw, Data(split="ratio", self_loops="keep"))
    assert arrays_sha256(raw, replace(writers.AS_STORED, split="ratio")) == arrays_sha256(
        raw, Data(split="ratio", self_loops="keep")
    )
    assert plain.num_edges == 2 * 78 + 1


def test_networkx_attributes() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "c")], name="letters")
    for node, split in (("a", "train"), ("b", "val"), ("c", None)):
        graph.nodes[node].update(x=[1.0, 2.0], y=[0, 1, 1] if node == "a" else [0, 0, 0], split=split)
    raw = from_networkx(graph, features="x", labels="y", split="split")
    assert raw.name == "letters" and raw.sources.tolist() == [0, 1] and raw.targets.tolist() == [1, 2]
    assert raw.labels is not None and raw.labels.dtype == np.uint8 and raw.labels.tolist()[0] == [0, 1, 1]
    assert raw.masks is not None
    assert [mask.tolist() for mask in raw.masks] == [[True, False, False], [False, True, False], [False] * 3]
    graph.nodes["c"]["split"] = "tset"
    with refused("node 'c' is in the split 'tset'"):
        from_networkx(graph, split="split")
    graph.nodes["c"]["x"] = [1.0]
    with refused("the attribute 'x' is of lengths [1, 2]"):
        from_networkx(graph, features="x")
    del graph.nodes["c"]["x"]
    with refused("node 'c' has no attribute 'x'"):
        from_networkx(graph, features="x")


def test_masks_of_networkx_may_be_given_as_arrays() -> None:
    masks = Masks(*np.eye(3, dtype=bool))
    assert from_networkx(nx.path_graph(3), split=masks).masks is masks
