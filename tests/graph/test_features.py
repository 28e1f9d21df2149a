from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from toolkit.graph.features import normalise, project, to_float32

from .helpers import refused

DENSE = np.array([[1.0, 0, 3], [0, 0, 0], [0, 5, 0], [2, 2, 4]])


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", "float16", ">f8"])
def test_any_number_becomes_float32_and_sparse_stays_sparse(dtype: str) -> None:
    dense = DENSE.astype(dtype)
    made = to_float32(dense, "g")
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, dense.astype(np.float32))
    sparse = to_float32(sp.csr_matrix(DENSE.astype(dtype).astype(np.float64)), "g")
    assert sp.issparse(sparse) and sparse.format == "csr" and sparse.dtype == np.float32
    np.testing.assert_array_equal(sparse.toarray(), made)


def test_the_given_matrix_is_left_as_it_was() -> None:
    repeated = sp.csr_matrix(([1.0, 2.0], [1, 1], [0, 2]), shape=(1, 2))
    assert to_float32(repeated, "g").toarray().tolist() == [[0, 3]]
    assert repeated.nnz == 2


@pytest.mark.parametrize(
    ("value", "says"), [(np.nan, "is nan"), (np.inf, "is inf"), (-np.inf, "is -inf"), (1e300, "is 1e+300")]
)
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_not_finite_is_named(value: float, says: str, sparse: bool) -> None:
    dense = DENSE.copy()
    dense[2, 1] = value
    with refused("g: the feature of node 2 in column 1", says, "not a finite float32"):
        to_float32(sp.csr_matrix(dense) if sparse else dense, "g")


@pytest.mark.parametrize("made", [np.array([["a"]]), np.zeros((2, 2), complex), np.zeros(3), np.array([[None]])])
def test_what_is_no_matrix_of_numbers_is_refused(made: Any) -> None:
    with refused("g: features are", "must be a matrix of numbers"):
        to_float32(made, "g")


def test_features_need_columns() -> None:
    with refused("have 0 columns"):
        to_float32(np.zeros((3, 0)), "g")


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_sum_to_one_and_zero_rows_stay_zero(sparse: bool) -> None:
    given = to_float32(sp.csr_matrix(DENSE) if sparse else DENSE, "g")
    made = normalise(given, "row", "g")
    assert sp.issparse(made) == sparse and made.dtype == np.float32
    dense = made.toarray() if sparse else made
    np.testing.assert_allclose(dense, [[0.25, 0, 0.75], [0, 0, 0], [0, 1, 0], [0.25, 0.25, 0.5]])


def test_tiny_rows_do_not_overflow() -> None:
    tiny = np.full((1, 2), 1e-45, np.float32)
    np.testing.assert_array_equal(normalise(tiny, "row", "g"), [[0.5, 0.5]])


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_whose_sum_is_not_positive_are_refused(sparse: bool) -> None:
    dense = np.array([[1, 1], [1, -1], [1, -3]], np.float32)
    with refused("'row'", "which is 0 at node 1", "'standard'"):
        normalise(sp.csr_matrix(dense) if sparse else dense, "row", "g")


@pytest.mark.parametrize("sparse", [False, True])
def test_standard_columns(sparse: bool) -> None:
    rng = np.random.default_rng(0)
    dense = (rng.random((9000, 4)) * [1, 100, 0.01, 0] + [0, 1000, 0, 0.1]).astype(np.float32)
    made = normalise(sp.csr_matrix(dense) if sparse else dense, "standard", "g")
    assert isinstance(made, np.ndarray) and made.dtype == np.float32
    np.testing.assert_allclose(made.mean(axis=0, dtype=np.float64), 0, atol=1e-4)
    np.testing.assert_allclose(made[:, :3].std(axis=0, dtype=np.float64), 1, atol=1e-4)
    assert (made[:, 3] == 0).all()
    exact = dense[:, 0].astype(np.float64)
    np.testing.assert_allclose(made[:, 0], (exact - exact.mean()) / exact.std(), rtol=1e-5, atol=1e-6)


def test_none_returns_the_same_object() -> None:
    given = to_float32(DENSE, "g")
    assert normalise(given, "none", "g") is given


def test_projection_keeps_distances_and_depends_on_the_seed_alone() -> None:
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((20, 300)).astype(np.float32)
    made = project(dense, 4000, 3)
    assert made.shape == (20, 4000) and made.dtype == np.float32
    np.testing.assert_allclose((made**2).sum(axis=1), (dense**2).sum(axis=1), rtol=0.15)
    np.testing.assert_allclose(project(sp.csr_matrix(dense), 4000, 3), made, rtol=1e-3, atol=1e-4)
    assert not np.allclose(project(dense, 4000, 4), made)
