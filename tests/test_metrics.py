import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from toolkit.train.metrics import count, scores


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
