from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from toolkit.config import Data
from toolkit.graph.raw import Masks
from toolkit.graph.split import by_ratio, choose, from_file, per_class

from .helpers import refused

LABELS = np.random.default_rng(0).integers(-1, 4, size=400)


def masks(*groups: list[int], size: int = 6) -> Masks:
    return Masks(*(np.isin(np.arange(size), group) for group in groups))


def test_per_class_counts() -> None:
    split = per_class(LABELS, 4, 5, 7, 0, "g")
    for label in range(4):
        here = np.equal(LABELS, label)
        assert [int((mask & here).sum()) for mask in split] == [5, 7, int(here.sum()) - 12]
    assert not (np.logical_or.reduce(split) & (LABELS < 0)).any()


@given(hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-1, 3)), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_splits_are_disjoint_and_hold_every_labelled_node(labels: Any, seed: int) -> None:
    for split in (by_ratio(labels, 0.5, 0.25, seed), per_class(labels, 4, 0, 0, seed, "g")):
        assert (np.sum(split, axis=0) == (labels >= 0)).all()


@given(st.integers(1, 500), st.integers(1, 100), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_ratio_sizes(nodes: int, train: int, val: int) -> None:
    train_ratio = train / (train + val)
    split = by_ratio(np.zeros(nodes, np.int64), train_ratio, 1 - train_ratio, 0)
    assert abs(split.train.sum() - nodes * train_ratio) <= 0.5 and not split.test.any()


@pytest.mark.parametrize(
    "make", [lambda s: per_class(LABELS, 4, 5, 7, s, "g"), lambda s: by_ratio(LABELS, 0.3, 0.3, s)]
)
def test_the_seed_decides(make: Any) -> None:
    first, again, other = make(1), make(1), make(2)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert all((a != b).any() for a, b in zip(first, other, strict=True))


def test_a_class_with_too_few_nodes_is_named() -> None:
    with refused("g: class 1 has 2 nodes", "train_per_class 2", "val_per_class 1 ask for 3", "'ratio'"):
        per_class(np.array([0, 0, 0, 1, 1]), 2, 2, 1, 0, "g")
    exact = per_class(np.array([0, 0, 0, 2, 2, 2]), 4, 2, 1, 0, "g")  # classes 1 and 3 have no node at all
    assert [int(mask.sum()) for mask in exact] == [4, 2, 0]


def test_overlaps_are_refused_naming_the_node() -> None:
    labels = np.zeros(6, np.int64)
    with refused("g: node 2 is in the splits train and val"):
        from_file(masks([0, 2], [1, 2], [3]), labels, "g")
    with refused("node 3 is in the splits val and test"):
        from_file(masks([0], [3], [3]), labels, "g")


def test_masks_of_the_wrong_kind_are_refused() -> None:
    labels = np.zeros(6, np.int64)
    with refused("the val mask is bool [5]", "bool [6]"):
        from_file(masks([0], [1], [2])._replace(val=np.zeros(5, bool)), labels, "g")
    wrong: Any = np.zeros(6)
    with refused("the test mask is float64 [6]"):
        from_file(masks([0], [1], [2])._replace(test=wrong), labels, "g")


def test_unlabelled_nodes_leave_the_file_split_with_a_note() -> None:
    labels = np.array([0, -1, 0, 0, -1, 0])
    split, notes = from_file(masks([0, 1], [2], [3, 4]), labels, "g")
    assert [np.flatnonzero(mask).tolist() for mask in split] == [[0], [2], [3]]
    assert notes == ("2 nodes without label are taken out of the file's split",)


def test_choice() -> None:
    labels = np.array([0, 0, 1, 1, 0, 1])
    own = masks([0], [1], [2])

    def chosen(own: Masks | None, **settings: Any) -> tuple[list[int], tuple[str, ...]]:
        data = Data(train_per_class=1, val_per_class=1, **settings)
        split, notes = choose(own, labels, 2, data, "g")
        return [int(mask.sum()) for mask in split], notes

    assert chosen(own) == ([1, 1, 1], ())
    assert chosen(own, split="file") == ([1, 1, 1], ())
    assert chosen(None) == ([2, 2, 2], ("random split: 1 training, 1 validation nodes per class, seed 0",))
    assert chosen(own, split="per_class", split_seed=3)[1] == (
        "random split: 1 training, 1 validation nodes per class, seed 3",
    )
    assert chosen(own, split="ratio", train_ratio=0.5, val_ratio=0.0)[0] == [3, 0, 3]
    with refused("g: data.split is 'file'", "has no split", "'per_class' or 'ratio'"):
        chosen(None, split="file")


def test_several_labels_a_node() -> None:
    labels = np.array([[0, 1], [0, 0], [1, 1], [1, 0]], np.uint8)
    split, notes = choose(None, labels, 2, Data(train_ratio=0.5, val_ratio=0.25), "g")
    assert [int(mask.sum()) for mask in split] == [2, 1, 1] and "random split: 0.5 training" in notes[0]
    own = masks([0], [1], [2])
    read, notes = from_file(Masks(*(mask[:4] for mask in own)), labels, "g")
    assert [np.flatnonzero(mask).tolist() for mask in read] == [[0], [1], [2]] and notes == ()
    with refused("g has several labels a node", "'per_class'", "'ratio' or 'file'"):
        choose(None, labels, 2, Data(split="per_class"), "g")


def test_one_of_several_splits() -> None:
    labels = np.zeros(6, np.int64)
    first, second = masks([0], [1], [2]), masks([3], [4], [2])
    own = Masks(*(np.stack(pair) for pair in zip(first, second, strict=True)))
    read, notes = from_file(own, labels, "g", 1)
    assert all((a == b).all() for a, b in zip(read, second, strict=True))
    assert notes == ("split 1 of the 2 of the data set",)
    with refused("data.split_index is 2, but g has 2 splits of its own; give 0 .. 1"):
        from_file(own, labels, "g", 2)
    with refused("data.split_index is 1, but g has 1 split of its own; give 0"):
        from_file(first, labels, "g", 1)
