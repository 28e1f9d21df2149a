"""Graphs on which METIS crashes, hangs or leaves parts empty: each is partitioned, no part is empty."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.support.graphs import random_graph
from toolkit.config import Data, Partition
from toolkit.errors import UserError
from toolkit.graph.data import Graph, IntArray
from toolkit.graph.partition import assign
from toolkit.graph.prepare import prepare
from toolkit.graph.raw import Masks, Raw

WEIGHTS = np.array([12.0, 8.0, 0.0])
ONE_TRY = {"tries": 1}


def joined(nodes: int, sources: IntArray, targets: IntArray) -> Graph:
    """Nodes with exactly these directed edges; two in ten are trained on."""
    features = np.ones((nodes, 1), np.float32)
    raw = Raw(
        name="joined",
        num_nodes=nodes,
        sources=sources,
        targets=targets,
        features=features,
        labels=np.zeros(nodes, np.int64),
        masks=Masks(*(np.arange(nodes) % 10 // 2 == which for which in range(3))),
    )
    return prepare(raw, Data(symmetrise=False, self_loops="keep", duplicates="keep"))


def star(leaves: int) -> Graph:
    """Node 0 joined to all others, both ways."""
    others = np.arange(1, leaves + 1)
    centre = np.zeros(leaves, np.int64)
    return joined(leaves + 1, np.concatenate([centre, others]), np.concatenate([others, centre]))


def path(nodes: int) -> Graph:
    left, right = np.arange(nodes - 1), np.arange(1, nodes)
    return joined(nodes, np.concatenate([left, right]), np.concatenate([right, left]))


def cliques(count: int, size: int) -> Graph:
    """Components of ``size`` nodes, all joined to all within."""
    inside = np.array([(i, j) for i in range(size) for j in range(size) if i != j], np.int64).reshape(-1, 2)
    ends = (inside[None] + size * np.arange(count)[:, None, None]).reshape(-1, 2)
    return joined(count * size, ends[:, 0], ends[:, 1])


def sizes(graph: Graph, ranks: int, **settings: object) -> IntArray:
    """Nodes of each part, after checking that every node has one and no part is empty."""
    parts = assign(graph, ranks, Partition(**{**ONE_TRY, **settings}), WEIGHTS).parts  # type: ignore[arg-type]
    assert parts.shape == (graph.num_nodes,) and parts.min() >= 0 and parts.max() < ranks
    counts = np.bincount(parts, minlength=ranks)
    assert counts.min() > 0
    return counts


BALANCES = ["nodes", "edges", "train"]


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("objective", ["cut", "volume"])
def test_one_part(balance: str, objective: str) -> None:
    for graph in (random_graph(50), path(2), joined(1, np.array([], int), np.array([], int))):
        assert sizes(graph, 1, balance=balance, objective=objective).tolist() == [graph.num_nodes]


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("objective", ["cut", "volume"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_edges_of_one_direction(balance: str, objective: str, ranks: int) -> None:
    """METIS takes for granted that every edge has its reverse."""
    everything_into_0 = joined(400, np.arange(1, 400), np.zeros(399, np.int64))
    chain = joined(400, np.arange(399), np.arange(1, 400))
    for graph in (everything_into_0, chain, random_graph(400, directed=True)):
        sizes(graph, ranks, balance=balance, objective=objective)


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_a_star_of_many_leaves(balance: str, ranks: int) -> None:
    """One node outweighs all others together when edges are balanced."""
    graph = star(100_000)
    counts = sizes(graph, ranks, balance=balance, tries=1)
    if balance != "edges":  # with two constraints, METIS alone would leave 3.4 times the mean at 7 ranks
        assert counts.max() <= {"nodes": 1.1, "train": 1.5}[balance] * -(-graph.num_nodes // ranks)


def test_self_loops_and_repeats_are_not_given_to_metis() -> None:
    ends = np.repeat(np.arange(30), 300)
    graph = joined(30, np.concatenate([ends, ends]), np.concatenate([ends, (ends + 1) % 30]))
    for objective in ("cut", "volume"):
        assert sizes(graph, 4, objective=objective).sum() == 30


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize(
    ("nodes", "ranks"), [(2, 2), (3, 3), (7, 7), (8, 8), (16, 16), (33, 33), (9, 8), (17, 16), (40, 39)]
)
def test_as_many_ranks_as_nodes_or_nearly(balance: str, nodes: int, ranks: int) -> None:
    for graph in (path(nodes), star(nodes - 1), random_graph(nodes), cliques(nodes, 1), cliques(1, nodes)):
        sizes(graph, ranks, balance=balance)


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize(("count", "size", "ranks"), [(2, 20, 7), (3, 5, 8), (1, 40, 16), (50, 1, 7), (64, 2, 5)])
def test_more_parts_than_components_and_the_other_way(balance: str, count: int, size: int, ranks: int) -> None:
    sizes(cliques(count, size), ranks, balance=balance)


@pytest.mark.parametrize("share", [0.001, 1.0])
def test_one_training_node_and_nothing_but_training_nodes(share: float) -> None:
    graph = random_graph(500, train_share=share)
    assert int(graph.train_mask.sum()) in (1, 500)
    counts = sizes(graph, 4, balance="train")
    assert counts.max() <= 2 * 500 / 4


def test_more_ranks_than_nodes_are_refused() -> None:
    with pytest.raises(UserError, match="5 ranks for the 4 nodes of joined: every rank needs a node"):
        sizes(path(4), 5)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["cut", "volume"])
def test_a_path_of_a_million_nodes(objective: str) -> None:
    """Coarsening halves a path at best: as many levels as there can be."""
    graph = path(1_000_000)
    begin = time.perf_counter()
    counts = sizes(graph, 4, objective=objective)
    seconds = time.perf_counter() - begin
    print(f"path of 10^6 nodes over 4 parts, {objective}: {seconds:.1f} s")
    assert counts.max() <= 1.05 * graph.num_nodes / 4
    assert seconds < 60
