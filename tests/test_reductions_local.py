"""N ranks equal one process, for any graph, partition, plan and model: N ranks as threads, in float64.

In float64 an error of the method and an error of rounding are ten orders of magnitude apart; SGD,
since Adam divides by a gradient's size and so enlarges the rounding of the smallest.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.graphs import random_graph, with_edges
from tests.support.oracle import verify_locally
from toolkit.config import Config, Method, Model, Train

EXACT = 1e-11


def configuration(kind="gcn", layers=3, plan="exact", dropout=0.5, input_dropout=0.0, norm="layer", **model):
    return Config(
        model=Model(
            kind=kind, layers=layers, hidden=8, dropout=dropout, input_dropout=input_dropout, norm=norm, **model
        ),
        method=Method(plan=plan),
        train=Train(dtype="float64", optimizer="sgd"),
    )


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("plan", ["exact", "paper", "once", "kept", "narrow", "needed", "kept+needed", "once+narrow"])
@pytest.mark.parametrize("directed", [False, True])
def test_every_plan_gives_one_processs_gradients(kind, plan, directed):
    graph = random_graph(directed=directed)
    parts = np.random.default_rng(1).integers(0, 3, graph.num_nodes)
    found = verify_locally(graph, configuration(kind, plan=plan, input_dropout=0.3), parts, ranks=3, steps=4)
    assert found.largest < EXACT


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ranks=st.integers(1, 5),
    kind=st.sampled_from(["gcn", "sage", "gat"]),
    plan=st.sampled_from(["exact", "paper"]),
    layers=st.integers(1, 4),
    features=st.sampled_from([1, 2, 7, 40]),
    dropout=st.sampled_from([0.0, 0.5, 0.8]),
    input_dropout=st.sampled_from([0.0, 0.5]),
    directed=st.booleans(),
    degree=st.sampled_from([0.0, 0.5, 3.0, 12.0]),
    norm=st.sampled_from(["none", "layer"]),
    seed=st.integers(0, 1000),
)
def test_any_graph_any_partition(
    ranks, kind, plan, layers, features, dropout, input_dropout, directed, degree, norm, seed
):
    graph = random_graph(40, features, mean_degree=degree, directed=directed, train_share=0.1, seed=seed)
    parts = np.random.default_rng(seed).integers(0, ranks, graph.num_nodes)
    parts[:ranks] = np.arange(ranks)  # no part empty
    config = configuration(kind, layers, plan, dropout, input_dropout, norm)
    assert verify_locally(graph, config, parts, ranks, steps=3).largest < EXACT


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_parts_without_training_nodes_and_a_rank_without_halo(kind):
    graph = random_graph(30, train_share=0.1)
    train = np.flatnonzero(graph.train_mask)
    pairs = [(u, v) for u in range(20) for v in (int(train[0]), (u * 7 + 1) % 20) if u != v]
    graph = with_edges(graph, [u for u, _ in pairs], [v for _, v in pairs])  # nodes 20 .. 29 isolated
    parts = np.where(np.isin(np.arange(30), train), 0, 1)
    parts[25:] = 2  # neither halo nor training nodes
    found = verify_locally(graph, configuration(kind), parts, ranks=3, steps=3)
    assert found.largest < EXACT


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_repeated_edges_and_self_loops(kind):
    graph = random_graph(12)
    sources = [0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11]
    targets = [1, 1, 0, 1, 2, 3, 2, 2, 5, 5, 7, 8, 9, 10, 11, 11, 0]
    graph = with_edges(graph, sources, targets)
    found = verify_locally(graph, configuration(kind), np.arange(12) % 4, ranks=4, steps=3)
    assert found.largest < EXACT


def test_wide_rows():
    graph = random_graph(40, features=1433)
    found = verify_locally(graph, configuration(input_dropout=0.5), np.arange(40) % 3, ranks=3, steps=2)
    assert found.largest < EXACT


def test_bfloat16_rows_differ_but_not_by_much():
    """The oracle must see a codec that rounds: it would not if it compared nothing."""
    import dataclasses

    config = configuration()
    config = dataclasses.replace(config, method=dataclasses.replace(config.method, codec="bfloat16"))
    found = verify_locally(random_graph(), config, np.arange(120) % 3, ranks=3, steps=1)
    assert 1e-5 < found.gradients < 0.1


def test_more_ranks_than_threads_of_a_ring():
    graph = random_graph(60)
    assert verify_locally(graph, configuration(), np.arange(60) % 9, ranks=9, steps=2).largest < EXACT


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("decay_layers", ["all", "first"])
def test_every_optimiser(optimizer, decay_layers):
    import dataclasses

    config = configuration()
    train = dataclasses.replace(config.train, optimizer=optimizer, decay_layers=decay_layers, weight_decay=0.01)
    found = verify_locally(random_graph(), dataclasses.replace(config, train=train), np.arange(120) % 3, 3, steps=4)
    assert found.largest < EXACT


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("plan", ["exact", "paper", "narrow"])
@pytest.mark.parametrize("input_dropout", [0.0, 0.5])
@pytest.mark.parametrize("features", [5, 60])
def test_sparse_features_equal_dense_ones(kind, plan, input_dropout, features):
    """Kept sparse over 3 ranks (where the plan lets them), against dense ones in one process."""
    import dataclasses

    import scipy.sparse as sp

    from tests.support.local_world import run_ranks
    from toolkit.graph.part import build_parts
    from toolkit.nn.features import SparseRows
    from toolkit.train.trainer import Trainer
    from toolkit.verify import compare, follow, single_process

    graph = random_graph(90, features)
    few = sp.random(90, features, density=0.03, format="csr", random_state=1, dtype=np.float32)
    config = configuration(kind, plan=plan, input_dropout=input_dropout)
    reference = single_process(dataclasses.replace(graph, features=few.toarray()), config, 3)
    owned = list(build_parts(dataclasses.replace(graph, features=few), np.arange(90) % 3, 3))
    found = run_ranks(3, lambda world, transport: follow(owned[world.rank], config, world, transport, 3))
    assert compare(found[0], reference, config, owned[0], 3).largest < EXACT
    kept = run_ranks(3, lambda w, t: isinstance(Trainer(owned[w.rank], config, w, t).engine.features, SparseRows))
    assert kept == [plan == "exact" or (plan == "narrow" and features == 60)] * 3


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize(("norm", "residual"), [("batch", False), ("batch", True), ("layer", True), ("none", True)])
@pytest.mark.parametrize("plan", ["exact", "paper"])
def test_batch_normalisation_and_residuals(kind, norm, residual, plan):
    config = configuration(kind, layers=4, plan=plan, norm=norm, residual=residual)
    found = verify_locally(random_graph(), config, np.arange(120) % 3, ranks=3, steps=4)
    assert found.largest < EXACT


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_schedules_and_clipping(schedule):
    import dataclasses

    config = configuration()
    train = dataclasses.replace(config.train, schedule=schedule, warmup_epochs=2, clip_norm=0.01, epochs=6)
    config = dataclasses.replace(config, train=train)
    assert verify_locally(random_graph(), config, np.arange(120) % 3, ranks=3, steps=6).largest < EXACT
