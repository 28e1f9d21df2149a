import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from tests.support.graphs import random_graph
from tests.support.local_world import run_ranks
from toolkit.comm.world import Solo
from toolkit.graph.part import build_parts, whole
from toolkit.train.metrics import SPLITS, area_under_curve, count, evaluate, scores


@settings(deadline=None)
@given(nodes=st.integers(1, 60), classes=st.integers(1, 6), ranks=st.integers(1, 4), seed=st.integers(0, 999))
def test_scores_equal_scikit_learn_however_nodes_are_spread(nodes, classes, ranks, seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((nodes, classes)))
    labels = torch.from_numpy(rng.integers(0, classes, nodes))
    mask = torch.from_numpy(rng.random(nodes) < 0.8)
    owner = rng.integers(0, ranks, nodes)
    found = scores(sum(count(logits[owner == r], labels[owner == r], mask[owner == r]) for r in range(ranks)))
    if not mask.any():
        assert np.isnan(found.accuracy) and np.isnan(found.macro_f1) and np.isnan(found.loss)
        return
    true, predicted = labels[mask].numpy(), logits[mask].argmax(1).numpy()
    assert found.accuracy == pytest.approx(accuracy_score(true, predicted))
    assert found.micro_f1 == pytest.approx(f1_score(true, predicted, average="micro"))
    assert found.macro_f1 == pytest.approx(f1_score(true, predicted, average="macro"))
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(logits[mask], labels[mask]).item())


@settings(deadline=None)
@given(
    nodes=st.integers(1, 40),
    classes=st.integers(2, 5),
    ranks=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 999),
)
def test_multi_label_scores_equal_scikit_learn(nodes, classes, ranks, share, seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((nodes, classes)).round(1))  # some are exactly 0: not predicted
    labels = torch.from_numpy((rng.random((nodes, classes)) < share).astype(np.uint8))
    mask = torch.from_numpy(rng.random(nodes) < 0.8)
    mask[0] = True
    owner = rng.integers(0, ranks, nodes)
    counts = sum(count(logits[owner == r], labels[owner == r], mask[owner == r]) for r in range(ranks))
    found = scores(counts, multi_label=True)
    true, predicted = labels[mask].numpy(), (logits[mask] > 0).numpy().astype(np.uint8)
    assert found.accuracy == pytest.approx(accuracy_score(true, predicted))
    assert found.micro_f1 == pytest.approx(f1_score(true, predicted, average="micro", zero_division=0))
    assert found.macro_f1 == pytest.approx(f1_score(true, predicted, average="macro", zero_division=0))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[mask], labels[mask].double())
    assert found.loss == pytest.approx(loss.item())


@settings(deadline=None)
@given(nodes=st.integers(2, 60), levels=st.integers(1, 60), seed=st.integers(0, 999))
def test_the_area_equals_scikit_learn_with_and_without_ties(nodes, levels, seed):
    rng = np.random.default_rng(seed)
    score = rng.integers(0, levels, nodes) / 7
    positive = rng.random(nodes) < 0.5
    found = area_under_curve(score, positive)
    if positive.all() or not positive.any():
        assert np.isnan(found)
    else:
        assert found == pytest.approx(roc_auc_score(positive, score), rel=1e-12)


def area_of(labels, logits):
    """What scikit-learn says; the mean over the classes that have an area."""
    if labels.ndim == 1 and logits.shape[1] == 2:
        return roc_auc_score(labels, logits[:, 1] - logits[:, 0])
    shares = logits if labels.ndim == 2 else torch.softmax(torch.from_numpy(logits), 1).numpy()
    columns = labels if labels.ndim == 2 else labels[:, None] == np.arange(logits.shape[1])
    each = [roc_auc_score(columns[:, c], shares[:, c]) for c in range(logits.shape[1]) if 0 < columns[:, c].mean() < 1]
    return np.mean(each) if each else np.nan


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", ["binary", "many", "multi-label"])
def test_areas_over_ranks_equal_scikit_learn(ranks, kind):
    import dataclasses

    rng = np.random.default_rng(4)
    classes = 2 if kind == "binary" else 5
    graph = random_graph(90, classes=classes, seed=2)
    if kind == "multi-label":
        chosen = (rng.random((90, classes)) < 0.4).astype(np.uint8)
        chosen[:, 3] = 0  # a label that never applies has no area
        graph = dataclasses.replace(graph, labels=chosen)
    logits = rng.standard_normal((90, classes)).astype(np.float32).round(1)
    owner = np.arange(90) % ranks
    parts = list(build_parts(graph, owner, ranks))
    found = run_ranks(
        ranks,
        lambda world, transport: evaluate(
            torch.from_numpy(logits[owner == world.rank]), parts[world.rank], world, roc_auc=True
        ),
    )
    for split, mask in zip(SPLITS, (graph.train_mask, graph.val_mask, graph.test_mask), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expected = area_of(graph.labels[mask], logits[mask].astype(np.float64))
        for result in found:
            assert result[split].roc_auc == pytest.approx(expected, rel=1e-12)


def test_one_vs_rest_equals_scikit_learns_own():
    rng = np.random.default_rng(1)
    graph = random_graph(90, classes=4, seed=2)
    logits = torch.from_numpy(rng.standard_normal((90, 4)))
    found = evaluate(logits, whole(graph), Solo(), roc_auc=True)["test"].roc_auc
    mask = graph.test_mask
    shares = torch.softmax(logits, 1).numpy()[mask]
    assert found == pytest.approx(roc_auc_score(graph.labels[mask], shares, multi_class="ovr"), rel=1e-12)


def test_the_area_is_computed_only_when_asked_for():
    graph = random_graph(30)
    assert np.isnan(evaluate(torch.zeros(30, 3), whole(graph), Solo())["val"].roc_auc)
