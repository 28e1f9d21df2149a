import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.support.graphs import random_graph
from tests.support.local_world import run_ranks
from tests.support.oracle import verify_locally
from toolkit import config as configs
from toolkit.comm.transport import Nothing
from toolkit.comm.world import Solo
from toolkit.errors import UserError
from toolkit.graph.part import build_parts, whole
from toolkit.train import metrics
from toolkit.train.loss import class_weights, training_loss
from toolkit.train.trainer import Trainer


def multi_label(graph, labels=4, seed=0):
    """The graph with several labels a node; some have none, and the last label never applies."""
    chosen = (np.random.default_rng(seed).random((graph.num_nodes, labels)) < 0.3).astype(np.uint8)
    chosen[:, -1] = 0
    return dataclasses.replace(graph, labels=chosen, num_classes=labels)


def config_of(**train):
    return configs.Config(
        model=configs.Model(hidden=8), train=configs.Train(dtype="float64", **train), data=configs.Data(name="sbm")
    )


def test_cross_entropy_is_torchs():
    logits, labels = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 2])
    assert training_loss(logits, labels) == F.cross_entropy(logits, labels, reduction="sum")
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    mean = training_loss(logits, labels, weights) / weights[labels].sum()
    torch.testing.assert_close(mean, F.cross_entropy(logits, labels, weight=weights))


def test_binary_cross_entropy_is_torchs_mean_over_labels():
    logits, labels = torch.randn(7, 3, dtype=torch.float64), torch.randint(0, 2, (7, 3), dtype=torch.uint8)
    expected = F.binary_cross_entropy_with_logits(logits, labels.double())
    torch.testing.assert_close(training_loss(logits, labels) / 7, expected)
    weights = torch.tensor([[1.0, 1.0, 1.0], [3.0, 0.5, 2.0]], dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(logits, labels.double(), pos_weight=weights[1])
    torch.testing.assert_close(training_loss(logits, labels, weights) / 7, expected)


def test_no_nodes_no_loss_and_no_gradient():
    for labels in (torch.zeros(0, dtype=torch.long), torch.zeros(0, 3, dtype=torch.uint8)):
        logits = torch.zeros(0, 3, requires_grad=True)
        loss = training_loss(logits, labels)
        loss.backward()
        assert loss == 0 and logits.grad.shape == (0, 3)


@settings(deadline=None, max_examples=50)
@given(nodes=st.integers(1, 40), classes=st.integers(1, 5), seed=st.integers(0, 999), several=st.booleans())
def test_balanced_weights_equal_scikit_learn(nodes, classes, seed, several):
    from sklearn.utils.class_weight import compute_class_weight

    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (nodes, classes + 1)).astype(np.uint8) if several else rng.integers(0, classes, nodes)
    found = class_weights("balanced", labels, classes + several, Solo(), torch.float64).numpy()
    columns = [(labels[:, c], found[:, c]) for c in range(classes + 1)] if several else [(labels, found)]
    for column, weights in columns:
        there = np.unique(column)
        np.testing.assert_allclose(weights[there], compute_class_weight("balanced", classes=there, y=column))
        assert weights[column].sum() == pytest.approx(nodes)
        assert not np.delete(weights, there).any()


def test_weights_are_of_the_whole_graph():
    labels = np.array([0, 0, 0, 1, 2, 2])

    def own(world, transport):
        return class_weights("balanced", labels[world.rank :: world.size], 3, world, torch.float32)

    expected = class_weights("balanced", labels, 3, Solo(), torch.float32)
    for ranks in (2, 3, 6):
        for found in run_ranks(ranks, own):
            assert torch.equal(found, expected)
    assert class_weights("none", labels, 3, Solo(), torch.float32) is None


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("weights", ["none", "balanced"])
@pytest.mark.parametrize("several", [False, True])
def test_gradients_do_not_depend_on_the_partition(ranks, weights, several):
    graph = random_graph(60, seed=3)
    graph = multi_label(graph) if several else dataclasses.replace(graph, labels=(graph.labels > 1).astype(np.int64))
    parts = np.random.default_rng(1).integers(0, ranks, 60)
    parts[graph.train_mask] = 0  # a rank without training nodes is legal
    assert verify_locally(graph, config_of(class_weights=weights), parts, ranks, 3).largest < 1e-9


@pytest.mark.parametrize("several", [False, True])
def test_weights_change_the_loss_as_written(several):
    graph = random_graph(60, seed=3)
    graph = multi_label(graph) if several else graph
    losses = []
    for how in ("none", "balanced"):
        trainer = Trainer(whole(graph), config_of(class_weights=how), Solo(), Nothing())
        losses.append(trainer.gradients(0).loss)
    assert losses[0] != pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_every_rank_gets_the_scores_of_the_whole_graph(several):
    graph = random_graph(90, classes=3, seed=5)
    graph = multi_label(graph) if several else graph
    config = config_of(metric="roc_auc", epochs=2)
    parts = list(build_parts(graph, np.arange(90) % 3, 3))

    def train(world, transport):
        trainer = Trainer(parts[world.rank], config, world, transport)
        trainer.step(0)
        return trainer.evaluate()

    alone = Trainer(whole(graph), config, Solo(), Nothing())
    alone.step(0)
    expected = alone.evaluate()
    found = run_ranks(3, train)
    for scores in found:
        assert scores == found[0]
    for split in metrics.SPLITS:
        for key, value in dataclasses.asdict(expected[split]).items():
            assert np.isfinite(value)
            assert getattr(found[0][split], key) == pytest.approx(value, rel=1e-9)


def test_roc_auc_of_very_many_classes_is_refused():
    graph = dataclasses.replace(random_graph(40), num_classes=2000)
    with pytest.raises(UserError, match=r"train.metric is 'roc_auc' for 2000 classes.*use 'macro_f1'"):
        Trainer(whole(graph), config_of(metric="roc_auc"), Solo(), Nothing())
