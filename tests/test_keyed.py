import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.keyed import dropout_mask, hash_rows, kept_per_row, mix64, row_keys


@given(
    columns=st.integers(1, 400),
    dropout=st.floats(0, 0.99),
    nodes=st.lists(st.integers(0, 2**40), min_size=0, max_size=30, unique=True),
    seed=st.integers(0, 2**63),
)
def test_every_row_keeps_exactly_as_many(columns, dropout, nodes, seed):
    kept = kept_per_row(columns, dropout)
    mask = dropout_mask(seed, 3, 1, np.array(nodes, dtype=np.int64), columns, kept)
    assert mask.shape == (len(nodes), columns)
    assert (mask.sum(1) == kept).all()


@given(order=st.permutations(list(range(12))), take=st.integers(1, 12))
def test_a_mask_depends_on_the_node_alone(order, take):
    everyone = dropout_mask(7, 2, 1, np.arange(12), 33, 16)
    some = np.array(order[:take])
    assert (dropout_mask(7, 2, 1, some, 33, 16) == everyone[some]).all()


@pytest.mark.parametrize("change", ["seed", "epoch", "layer"])
def test_masks_differ_between_seeds_epochs_layers(change):
    key = {"seed": 1, "epoch": 1, "layer": 1}
    nodes = np.arange(200)
    first = dropout_mask(*key.values(), nodes, 64, 32)
    key[change] = 2
    second = dropout_mask(*key.values(), nodes, 64, 32)
    agree = (first == second).mean()
    assert 0.45 < agree < 0.55  # two independent halves agree on half of the entries


def test_every_column_is_kept_equally_often():
    rows, columns, kept = 40_000, 48, 12
    mask = dropout_mask(0, 0, 1, np.arange(rows), columns, kept)
    share, expected = mask.mean(0), kept / columns
    standard_error = np.sqrt(expected * (1 - expected) / rows)
    assert np.abs(share - expected).max() < 4.5 * standard_error


def test_columns_and_neighbouring_rows_are_uncorrelated():
    mask = dropout_mask(0, 0, 1, np.arange(30_000), 20, 10).astype(float)
    correlations = np.corrcoef(mask.T)
    off = correlations[~np.eye(20, dtype=bool)]
    assert np.abs(off + 1 / 19).max() < 0.03  # exact counts make columns slightly negative: -1 / (D - 1)
    assert abs(np.corrcoef(mask[:-1, 0], mask[1:, 0])[0, 1]) < 0.03


def test_hash_fills_32_bits_evenly():
    low, high = row_keys(mix64(1, 2), np.arange(2000))
    values = hash_rows(low, high, 100).ravel()
    assert len(np.unique(values)) > len(values) * 0.9999
    for bit in range(32):
        assert abs(((values >> np.uint32(bit)) & 1).mean() - 0.5) < 0.006


def test_mix64_separates_words():
    assert len({mix64(a, b) for a in range(40) for b in range(40)}) == 1600


def test_values_are_pinned():
    """A resumed run of a later version must draw the same masks: these bits may never change."""
    assert mix64(1, 2, 3) == 0xD0734750FDE362B3
    mask = dropout_mask(5, 6, 7, np.array([8, 9]), 10, 5)
    assert mask.astype(int).tolist() == [[1, 1, 0, 1, 1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1, 1, 1, 1, 0]]
