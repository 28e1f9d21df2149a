"""Reads what ``scipy.sparse.save_npz`` wrote of a CSR matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.graph.archive import Archive
from toolkit.graph.data import IntArray
from toolkit.graph.raw import MAX_NODES, checked_csr, checked_indptr

KEYS = ("data", "indices", "indptr", "shape")


def read_matrix(archive: Archive) -> sp.csr_matrix:
    """The matrix, of the file's dtype, rows sorted. Raises UserError."""
    shape = _shape(archive)
    data, indices, indptr = (archive.array(key) for key in KEYS[:3])
    return checked_csr(data, indices, indptr, shape, str(archive.path))


def read_adjacency(archive: Archive) -> tuple[int, IntArray, IntArray, NDArray[Any]]:
    """Of a square matrix: nodes, row and column of each entry as stored, and the entries.

    Columns are not checked yet. Raises UserError.
    """
    rows, columns = _shape(archive)
    if rows != columns or rows > MAX_NODES:
        archive.refuse("shape", f"is {rows} x {columns}; an adjacency matrix is square, of at most {MAX_NODES} nodes")
    indices, values = archive.ints("indices", 1), archive.array("data")
    starts = checked_indptr(archive.array("indptr"), len(indices), str(archive.path))
    if len(starts) != rows + 1:
        archive.refuse("indptr", f"has {len(starts)} entries; {rows} nodes need {rows + 1}")
    if values.shape != indices.shape:
        archive.refuse("data", f"is {values.dtype} {list(values.shape)}; {len(indices)} edges need as many values")
    return rows, np.repeat(np.arange(rows), np.diff(starts)), indices, values


def _shape(archive: Archive) -> tuple[int, int]:
    archive.require(KEYS)
    if "format" in archive:
        written = archive.array("format")
        if written.shape != () or written.item() not in (b"csr", "csr"):
            archive.refuse("format", f"is {written.tolist()!r:.20}; write the matrix with .tocsr() first")
    shape = archive.ints("shape", 1)
    if len(shape) != 2 or shape.min() < 0:
        archive.refuse("shape", f"is {shape[:4].tolist()}; it must be two integers, rows and columns")
    return int(shape[0]), int(shape[1])
