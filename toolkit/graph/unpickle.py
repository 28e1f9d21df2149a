"""Reads the Planetoid pickles without trusting them.

A pickle is a program that may name any function of any module. Here the names that Planetoid files
need stand for inert objects, which only record what the pickle says of them; arrays and matrices
are then built from the records, after checks. No other name is looked up at all.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.raw import checked_csr

_DTYPE = re.compile(r"b1|[iu][1248]|f[248]")


class _Inert:
    """Keeps the arguments and the state that a pickle gives to an object, and runs nothing."""

    __slots__ = ("args", "state")
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> _Inert:  # not __init__: NEWOBJ calls __new__ alone
        self = super().__new__(cls)
        self.args, self.state = args, None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Inert):
    __slots__ = ()


class _DType(_Inert):
    __slots__ = ()


class _Csr(_Inert):
    __slots__ = ()


class _Adjacency(dict[int, list[int]]):
    def __init__(self, *factory: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> NoReturn:  # without it, BUILD could set attributes of this class
        raise pickle.UnpicklingError("a defaultdict has no state")


_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("scipy.sparse.csr", "csr_matrix"): _Csr,
    ("scipy.sparse._csr", "csr_matrix"): _Csr,
    ("builtins", "list"): list,
    ("__builtin__", "list"): list,
    ("collections", "defaultdict"): _Adjacency,
}


def load_csr(path: Path) -> sp.csr_matrix:
    """The CSR matrix of a pickle, sorted rows, of the file's dtype. Raises UserError."""
    made = _load(path)
    state = made.state if isinstance(made, _Csr) else None
    if not isinstance(state, dict):
        raise UserError(f"{path}: holds {_kind(made)}, not a CSR matrix; get the file anew")
    shape = state.get("_shape", state.get("shape"))
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(size) is int for size in shape)):
        raise UserError(f"{path}: the CSR matrix has no shape of two integers; get the file anew")
    parts = [_to_array(state.get(key), f"{path}: {key}") for key in ("data", "indices", "indptr")]
    return checked_csr(parts[0], parts[1], parts[2], shape, str(path))


def load_array(path: Path) -> NDArray[Any]:
    """The numeric array of a pickle. Raises UserError."""
    return _to_array(_load(path), str(path))


def load_adjacency(path: Path) -> dict[int, list[int]]:
    """The dict node -> neighbours of a pickle, of n entries 0 .. n - 1; every id is one of them. Raises UserError."""
    made = _load(path)
    if not isinstance(made, dict):
        raise UserError(f"{path}: holds {_kind(made)}, not a dict of neighbours; get the file anew")
    for node, neighbours in made.items():
        if type(node) is not int or not 0 <= node < len(made):
            raise UserError(f"{path}: a node is {_value(node)}; the {len(made)} nodes must be numbered from 0")
        if type(neighbours) is not list:
            raise UserError(f"{path}: node {node} has {_kind(neighbours)} for a list of neighbours; get the file anew")
        for other in neighbours:
            if type(other) is not int or not 0 <= other < len(made):
                raise UserError(f"{path}: node {node} has the neighbour {_value(other)}; there are {len(made)} nodes")
    return made


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> type:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise UserError(
                f"{self._path}: the pickle names {module}.{name}, which no Planetoid file needs and which could run "
                "a program; it is refused, get the file from a source you trust"
            ) from None


def _load(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}; check the folder of the data set") from None
    try:
        _refuse_large_memo(content)
        return _Unpickler(content, path).load()
    except UserError:
        raise
    except Exception as error:  # bytes of anyone's making can raise almost anything here
        reason = " ".join(str(error).split())[:200]
        kind = type(error).__name__
        raise UserError(f"{path}: is not a whole pickle ({kind}: {reason}); get the file anew") from None


def _refuse_large_memo(content: bytes) -> None:
    # The unpickler's memo is an array: one put at index 2**32 - 1 would take 64 GiB.
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(content):
            raise pickle.UnpicklingError(f"memo index {argument} in a file of {len(content)} bytes")


def _to_array(made: Any, what: str) -> NDArray[Any]:
    """The array that numpy's pickle state (version, shape, dtype, column-major, bytes) describes."""
    state = made.state if isinstance(made, _Array) else None
    if not (isinstance(state, tuple) and len(state) == 5):
        raise UserError(f"{what}: holds {_kind(made)}, not an array; get the file anew")
    _, shape, dtype, column_major, content = state
    if not (isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)):
        raise UserError(f"{what}: an array has no shape of integers; get the file anew")
    real = _to_dtype(dtype, what)
    if isinstance(content, str):  # a Python-2 string, read as latin1
        try:
            content = content.encode("latin1")
        except UnicodeEncodeError:
            raise UserError(f"{what}: an array's content is text, not bytes; get the file anew") from None
    num_bytes = math.prod(shape) * real.itemsize
    if not isinstance(content, bytes) or len(content) != num_bytes:
        raise UserError(f"{what}: an array of shape {shape} and {real} needs {num_bytes} bytes, not {_size(content)}")
    return np.frombuffer(content, real).reshape(shape, order="F" if column_major is True else "C").copy()


def _to_dtype(made: Any, what: str) -> np.dtype[Any]:
    code = made.args[0] if isinstance(made, _DType) and made.args else None
    if not isinstance(code, str) or not _DTYPE.fullmatch(code):
        raise UserError(f"{what}: an array's dtype is {_value(code)}; only arrays of numbers are read")
    order: Any = "|"
    if made.state is not None:  # (version, byte order, sub-array, names, fields, ...)
        plain = isinstance(made.state, tuple) and len(made.state) >= 5 and made.state[2:5] == (None, None, None)
        order = made.state[1] if plain else None
    if order not in ("<", ">", "|", "="):
        raise UserError(f"{what}: an array's dtype {code} is not a plain number; only arrays of numbers are read")
    dtype: np.dtype[Any] = np.dtype(order + code)
    return dtype


def _kind(made: Any) -> str:
    known = {_Csr: "a CSR matrix", _Array: "an array", _DType: "a dtype", _Adjacency: "a dict"}
    return known.get(type(made), f"a {type(made).__name__}")


def _value(made: Any) -> str:
    small = isinstance(made, str) or (type(made) is int and abs(made) <= sys.maxsize)
    return repr(made)[:40] if small else _kind(made)


def _size(content: Any) -> str:
    return str(len(content)) if isinstance(content, bytes) else _kind(content)
