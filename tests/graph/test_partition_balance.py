"""partition.balance = "train" where METIS can't balance nodes and training nodes together, and where it can."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from tests.graph.test_metis_traps import star
from tests.support.graphs import random_graph
from toolkit import config as configs
from toolkit.graph import partition, registry
from toolkit.graph.data import Graph, IntArray
from toolkit.graph.partition import LARGEST_SHARE, assign, largest_share, metis_parts, undirected_pattern

WEIGHTS = np.array([12.0, 8.0, 0.0])
Said = pytest.LogCaptureFixture


def settings_of(**changes: object) -> configs.Partition:
    return configs.Partition(**{"balance": "train", "numbering": "identity", **changes})  # type: ignore[arg-type]


def sbm() -> Graph:
    data = {"name": "sbm", "nodes": 2000, "edges": 20_000}
    return registry.load(configs.from_tables({"data": data}))


def shares(graph: Graph, parts: IntArray, ranks: int) -> tuple[float, float]:
    """Nodes, and training nodes, of the largest part over the mean."""
    assert np.bincount(parts, minlength=ranks).min() > 0
    counts = [np.bincount(of, minlength=ranks) for of in (parts, parts[graph.train_mask])]
    return counts[0].max() / counts[0].mean(), counts[1].max() / counts[1].mean()


@pytest.mark.parametrize("objective", ["cut", "volume"])
def test_a_star_over_seven_ranks_is_balanced_in_nodes(objective: str, caplog: Said) -> None:
    graph = star(20_000)
    settings = settings_of(objective=objective)
    asked = metis_parts(graph, undirected_pattern(graph), 7, settings, 0)
    assert largest_share(asked, 7) > 3, "METIS has learned to balance a star: drop the second call"
    with caplog.at_level(logging.INFO, "bitring"):
        parts = assign(graph, 7, settings, WEIGHTS).parts
    nodes, training = shares(graph, parts, 7)
    assert nodes < 1.1 and training < 1.1
    assert len(caplog.messages) == 1, "one sentence for four tries"
    assert "3.42 times an equal share of the nodes" in caplog.text and "with nodes alone 1.03 times" in caplog.text
    assert "the latter is kept" in caplog.text
    assert (assign(graph, 7, settings, WEIGHTS).parts == parts).all()


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_where_metis_balances_both_its_parts_are_kept(ranks: int, caplog: Said) -> None:
    graph, settings = sbm(), settings_of(tries=1)
    both = metis_parts(graph, undirected_pattern(graph), ranks, settings, 0)
    assert (assign(graph, ranks, settings, WEIGHTS).parts == both).all()
    nodes, training = shares(graph, both, ranks)
    assert nodes <= LARGEST_SHARE and training <= LARGEST_SHARE
    assert caplog.messages == []


def test_volume_over_many_parts(caplog: Said) -> None:
    """Not only stars: here two constraints give one part over five times its share of an ordinary graph."""
    graph, settings = sbm(), settings_of(objective="volume")
    assert largest_share(metis_parts(graph, undirected_pattern(graph), 16, settings, 0), 16) > 5
    nodes, training = shares(graph, assign(graph, 16, settings, WEIGHTS).parts, 16)
    assert nodes < 1.1 and training < 1.6


def parts_of(*sizes: int) -> IntArray:
    return np.repeat(np.arange(len(sizes)), sizes)


@pytest.mark.parametrize(("alone", "kept"), [((80, 10, 10), "latter"), ((95, 3, 2), "former"), ((90, 9, 1), "former")])
def test_where_both_are_bad_the_better_is_kept(
    alone: tuple[int, ...], kept: str, monkeypatch: pytest.MonkeyPatch, caplog: Said
) -> None:
    both = parts_of(90, 5, 5)
    answers = {"train": both, "nodes": parts_of(*alone)}
    monkeypatch.setattr(partition, "metis_parts", lambda *args: answers[args[3].balance])
    parts = assign(random_graph(100), 3, settings_of(tries=1), WEIGHTS).parts
    assert (parts == (both if kept == "former" else answers["nodes"])).all()
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage() == (
        'with nodes and training nodes balanced (partition.balance = "train") METIS gives the largest of 3 parts '
        "2.65 times an equal share of the nodes, over the limit of 1.5, and with nodes alone "
        f'{max(alone) / 34:.2f} times: the {kept} is kept; partition.method = "random" makes equal parts'
    )


def test_few_nodes_a_part_are_no_imbalance() -> None:
    assert largest_share(parts_of(2, 1, 1, 1, 1, 1, 1, 1), 8) == 1  # 1.8 times the mean, and nothing less is possible
    assert largest_share(parts_of(50, 25, 25), 4) == 2  # an empty part counts


@pytest.mark.parametrize("balance", ["nodes", "edges"])
def test_other_balances_are_left_as_metis_gives_them(balance: str, caplog: Said) -> None:
    graph, settings = star(2000), settings_of(balance=balance, tries=1)
    asked = metis_parts(graph, undirected_pattern(graph), 16, settings, 0)
    assert (assign(graph, 16, settings, WEIGHTS).parts == asked).all()
    assert caplog.messages == []
