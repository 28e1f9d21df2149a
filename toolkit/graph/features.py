"""Checks the features of a graph, normalises and projects them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.data import Features
from toolkit.graph.raw import MAX_COLUMNS, RawFeatures

_BLOCK_ROWS = 4096  # float64 copies are made of so many rows at a time


def to_float32(features: RawFeatures, name: str) -> Features:
    """Features [n, D] of any numeric dtype as float32, sparse if they were. UserError for NaN, infinity, text."""
    made: Any = features
    if sp.issparse(features):
        made = sp.csr_matrix(features, copy=True)
        made.sum_duplicates()
    if made.ndim != 2 or made.dtype.kind not in "biuf":
        raise UserError(f"{name}: features are {made.dtype} {list(made.shape)}; they must be a matrix of numbers")
    if not 1 <= made.shape[1] <= MAX_COLUMNS:
        raise UserError(f"{name}: features have {made.shape[1]} columns; there must be 1 to {MAX_COLUMNS}")
    given = made
    with np.errstate(over="ignore"):
        made = given.astype(np.float32)
    finite = np.isfinite(made.data if sp.issparse(made) else made)
    if not finite.all():
        node, column = _place(made, int(np.argmin(finite)))
        raise UserError(
            f"{name}: the feature of node {node} in column {column} is {given[node, column]}, not a finite float32; "
            "mend the file"
        )
    result: Features = made
    return result


def normalise(features: Features, how: str, name: str) -> Features:
    """'none'; 'row': each row over its sum, sparse stays sparse; 'standard': columns of mean 0, deviation 1, dense.

    A row or a column of zeros stays zero. Raises UserError if a row's sum is not positive though the row is not zero.
    """
    if how == "row":
        return _by_row(features, name)
    if how == "standard":
        return _standard(features)
    return features


def project(features: Features, columns: int, seed: int) -> NDArray[np.float32]:
    """Features times a Gaussian matrix [D, columns] over sqrt(columns), which keeps distances in expectation; dense."""
    rng = np.random.default_rng([seed, 2])
    matrix = rng.standard_normal((features.shape[1], columns), dtype=np.float32) / np.float32(np.sqrt(columns))
    return np.ascontiguousarray(features @ matrix)


def _place(features: Any, at: int) -> tuple[int, int]:
    """Row and column of entry ``at`` of the flattened matrix, or of a sparse one's stored entries."""
    if sp.issparse(features):
        return int(np.searchsorted(features.indptr, at, side="right")) - 1, int(features.indices[at])
    return divmod(at, int(features.shape[1]))


def _by_row(features: Any, name: str) -> Features:
    sparse = sp.issparse(features)
    sums = np.asarray(features.sum(axis=1, dtype=np.float64)).ravel()
    used = np.asarray(abs(features).sum(axis=1)).ravel() > 0
    wrong = np.flatnonzero(used & (sums <= 0))
    if len(wrong):
        raise UserError(
            f"{name}: data.feature_norm = 'row' divides each row by its sum, which is {sums[wrong[0]]:g} at node "
            f"{wrong[0]}; use 'standard' for features that can be negative"
        )
    factors = np.divide(1, sums, out=np.zeros_like(sums), where=used)
    if not sparse:
        dense: Features = (features * factors[:, None]).astype(np.float32)
        return dense
    rows = np.repeat(factors, np.diff(features.indptr))
    return sp.csr_matrix(((features.data * rows).astype(np.float32), features.indices, features.indptr), features.shape)


def _standard(features: Any) -> NDArray[np.float32]:
    if sp.issparse(features):
        features = features.toarray()
    mean = features.mean(axis=0, dtype=np.float64)
    variance = np.zeros_like(mean)
    blocks = [slice(start, start + _BLOCK_ROWS) for start in range(0, len(features), _BLOCK_ROWS)]
    for block in blocks:
        variance += ((features[block] - mean) ** 2).sum(axis=0)
    deviation = np.sqrt(variance / max(len(features), 1))
    deviation[deviation == 0] = 1  # a column of one value: float64 sums of float32 are exact, it becomes zero
    made = np.empty(features.shape, np.float32)
    for block in blocks:
        made[block] = (features[block] - mean) / deviation
    return made
