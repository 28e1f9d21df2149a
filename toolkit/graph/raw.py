"""A graph as a file or a generator gives it, before it is checked and prepared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.data import BoolArray, IntArray, Labels

MAX_COLUMNS = 2**31 - 1
MAX_NODES = 2**31 - 1  # METIS numbers nodes with 32 bits, and a damaged count must not ask for the whole memory
RawFeatures: TypeAlias = NDArray[Any] | sp.csr_matrix


class Masks(NamedTuple):
    """Which nodes are trained on, validated on and tested on: three bool [n], disjoint once prepared.

    As a file gives them, they may be [S, n]: S fixed splits, of which data.split_index chooses one.
    """

    train: BoolArray
    val: BoolArray
    test: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Raw:
    """n nodes and E edges as stored: directed, with self-loops and repeats, ids not yet checked."""

    name: str
    num_nodes: int
    sources: IntArray  # [E] an edge carries a message from its source ...
    targets: IntArray  # [E] ... to its target
    features: RawFeatures | None = None  # [n, D] any numeric dtype
    labels: Labels | None = None  # [n] -1 where unknown, or multi-label [n, C]
    num_classes: int | None = None  # None: one more than the largest label
    masks: Masks | None = None  # the file's own split
    notes: tuple[str, ...] = ()


def checked_indptr(indptr: NDArray[Any], num_entries: int, what: str) -> IntArray:
    """``indptr`` [rows + 1] as int64, if it cuts ``num_entries`` entries into rows.

    Raises UserError, beginning with ``what``.
    """
    if indptr.ndim != 1 or indptr.dtype.kind not in "iu" or not len(indptr):
        raise UserError(f"{what}: indptr is {indptr.dtype} {list(indptr.shape)}; it must be a vector of integers")
    indptr = indptr.astype(np.int64)
    falls = np.flatnonzero(np.diff(indptr) < 0)
    if len(falls):
        row = falls[0]
        raise UserError(f"{what}: indptr falls from {indptr[row]} to {indptr[row + 1]} at row {row}; mend the file")
    if indptr[0] != 0 or indptr[-1] != num_entries:
        raise UserError(
            f"{what}: indptr runs from {indptr[0]} to {indptr[-1]}; for {num_entries} entries it must be 0 to that"
        )
    return indptr


def checked_csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int], what: str
) -> sp.csr_matrix:
    """A scipy CSR matrix with sorted rows and no repeats, after checking what scipy would believe.

    scipy's compiled routines index memory by ``indices`` and ``indptr`` unchecked, so nothing of a
    file may reach them before this. Raises UserError, beginning with ``what``.
    """
    if data.ndim != 1 or data.dtype.kind not in "biuf":
        raise UserError(f"{what}: data is {data.dtype} {list(data.shape)}; it must be a vector of numbers")
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or len(indices) != len(data):
        raise UserError(
            f"{what}: indices is {indices.dtype} {list(indices.shape)}; it must be {len(data)} integers, one per value"
        )
    rows, columns = shape
    starts = checked_indptr(indptr, len(indices), what)
    if not 0 <= columns <= MAX_COLUMNS:
        raise UserError(f"{what}: shape is {rows} x {columns}; a matrix has 0 to {MAX_COLUMNS} columns, mend the file")
    if rows != len(starts) - 1:
        raise UserError(f"{what}: shape is {rows} x {columns}, but indptr has {len(starts) - 1} rows; mend the file")
    outside = np.flatnonzero((indices < 0) | (indices >= columns))
    if len(outside):
        at = outside[0]
        row = np.searchsorted(starts, at, side="right") - 1
        raise UserError(f"{what}: row {row} has an entry in column {indices[at]} of {columns}; mend the file")
    matrix = sp.csr_matrix((data.copy(), indices.astype(np.int64), starts), shape=shape)
    matrix.sum_duplicates()
    return matrix


def as_labels(given: NDArray[Any], what: str) -> Labels:
    """Labels in any shape and dtype that files use: int64 [n], or uint8 [n, C] for C > 1 columns of 0 and 1.

    One column [n, 1] is a vector; NaN in a vector is -1, unknown. Raises UserError, beginning with ``what``.
    """
    if given.dtype.kind not in "biuf" or given.ndim not in (1, 2) or (given.ndim == 2 and given.shape[1] == 0):
        raise UserError(f"{what} are {given.dtype} {list(given.shape)}; give an integer a node, or a row of 0 and 1")
    if given.ndim == 2 and given.shape[1] > 1:
        return multi_hot(given, what)
    column = given.reshape(-1)
    unknown = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), np.bool_)
    column = np.where(unknown, -1, column)
    wrong = np.flatnonzero((column != np.trunc(column)) | (abs(column) > MAX_COLUMNS))
    if len(wrong):
        raise UserError(f"{what}: node {wrong[0]} has {column[wrong[0]]}; a class is a whole number from 0")
    return column.astype(np.int64)


def multi_hot(given: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """A matrix [n, C] of 0 and 1, C > 1, as uint8. Raises UserError, beginning with ``what``."""
    if given.ndim != 2 or given.shape[1] < 2 or given.dtype.kind not in "biuf":
        raise UserError(f"{what} are {given.dtype} {list(given.shape)}; they must be a matrix of 0 and 1, 2 columns up")
    bits = given.astype(np.uint8) if given.dtype.kind == "b" else (given == 1).astype(np.uint8)
    wrong = np.flatnonzero(((given != 0) & (given != 1)).any(axis=1))
    if len(wrong):
        node = wrong[0]
        column = int(np.argmax((given[node] != 0) & (given[node] != 1)))
        raise UserError(
            f"{what}: node {node} has {given[node, column]} in column {column}; a row of several labels is of 0 and 1, "
            "and a node whose labels are unknown is left out of the split instead"
        )
    return bits


def mask_of_index(index: NDArray[Any], num_nodes: int, what: str) -> BoolArray:
    """Bool [n], true at the node numbers of ``index``. Raises UserError, beginning with ``what``."""
    if index.ndim != 1 or (index.dtype.kind not in "iu" and len(index)):
        raise UserError(f"{what} is {index.dtype} {list(index.shape)}; it must be a vector of node numbers")
    index = index.astype(np.int64) if len(index) == 0 else index
    outside = index[(index < 0) | (index >= num_nodes)]
    if len(outside):
        raise UserError(f"{what} names node {outside[0]}; nodes are 0 .. {num_nodes - 1}")
    mask = np.zeros(num_nodes, np.bool_)
    mask[index] = True
    return mask
