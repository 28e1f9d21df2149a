"""Reads ``.npy`` arrays that anyone may have made: numbers and text only, never Python objects."""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.data import IntArray

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def checked_header(stream: IO[bytes], num_bytes: int) -> tuple[int, ...]:
    """The shape of the array in a stream of ``num_bytes``, if its header is true.

    Raises ValueError with the complaint: what numpy would believe is checked before it reads on.
    """
    try:
        version = np.lib.format.read_magic(stream)
        shape, _, dtype = _READERS[version](stream)
        header_bytes = stream.tell()
    except Exception as error:  # text of anyone's making goes through Python's parser here
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"has no readable array header ({type(error).__name__}: {reason}); write the file anew"
        ) from None
    if dtype.kind not in "biufUS":
        raise ValueError(f"is of dtype {dtype}; only arrays of numbers and text are read, never Python objects")
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or header_bytes + declared != num_bytes:
        raise ValueError(
            f"says it is {dtype} {list(shape)}, {declared} bytes, but {num_bytes - header_bytes} are stored; "
            "write the file anew"
        )
    return tuple(shape)


def read_npy(path: Path) -> NDArray[Any]:
    """The array of a ``.npy`` file. Raises UserError, naming the file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            checked_header(stream, size)
            stream.seek(0)
            made: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}; check data.path") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return made


def read_matrix(path: Path) -> NDArray[Any]:
    """A matrix of numbers from a ``.npy`` file. Raises UserError."""
    made = read_npy(path)
    if made.ndim != 2 or made.dtype.kind not in "biuf":
        raise UserError(f"{path}: is {made.dtype} {list(made.shape)}; it must be a matrix of numbers")
    return made


def as_ints(made: NDArray[Any], what: str) -> IntArray:
    """Integers of any width as int64. Raises UserError, beginning with ``what``."""
    if made.dtype.kind not in "iu":
        raise UserError(f"{what} is {made.dtype} {list(made.shape)}; it must be of integers")
    if made.dtype.kind == "u" and made.size and made.max() > np.iinfo(np.int64).max:
        raise UserError(f"{what} holds {made.max()}, which no 64-bit signed integer can; write smaller numbers")
    return made.astype(np.int64)
