from __future__ import annotations

import builtins
import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from toolkit.errors import UserError
from toolkit.graph.unpickle import load_adjacency, load_array, load_csr

from .helpers import refused

LOADERS = (load_csr, load_array, load_adjacency)


def write(folder: Path, made: Any, protocol: int = 4) -> Path:
    path = folder / "made.pickle"
    path.write_bytes(made if isinstance(made, bytes) else pickle.dumps(made, protocol))
    return path


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i4", ">i8", "|b1", "|u1", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_equal_what_pickle_gives(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4) % 5, dtype=dtype, order=order)
    path = write(tmp_path, array)
    made = load_array(path)
    np.testing.assert_array_equal(made, pickle.loads(path.read_bytes()))
    assert made.dtype == array.dtype and made.flags.writeable


def test_a_matrix_equals_what_pickle_gives(tmp_path: Path) -> None:
    matrix = sp.random(20, 9, density=0.3, format="csr", dtype=np.float32, random_state=0)
    made = load_csr(write(tmp_path, matrix))
    assert made.dtype == np.float32 and made.shape == (20, 9)
    np.testing.assert_array_equal(made.toarray(), matrix.toarray())


def test_an_adjacency_equals_what_pickle_gives(tmp_path: Path) -> None:
    graph = defaultdict(list, {0: [1, 1], 1: [0], 2: []})
    assert load_adjacency(write(tmp_path, graph)) == graph
    assert load_adjacency(write(tmp_path, dict(graph))) == graph


def test_python_2_pickles_are_read(tmp_path: Path) -> None:
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    array += b"(I1\n(I2\ntcnumpy\ndtype\n(S'i4'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\n"
    array += b"U\x08\xff\x00\x00\x00\x02\x00\x00\x00tb."
    assert load_array(write(tmp_path, array)).tolist() == [255, 2]
    graph = b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntR(I0\n(lI0\nas."
    assert load_adjacency(write(tmp_path, graph.replace(b"R(I0", b"RI0"))) == {0: [0]}


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "nest",
    [lambda c: c, lambda c: [1, c], lambda c: {0: [c]}, lambda c: ("x", (c,)), lambda c: Calls(list, (c,))],
    ids=["bare", "list", "dict", "tuple", "argument"],
)
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, "system"),
        (builtins.eval, "eval"),
        (builtins.getattr, "getattr"),
        (builtins.__import__, "__import__"),
        (np.load, "load"),
    ],
)
def test_other_names_are_refused_and_not_run(
    tmp_path: Path, load: Any, protocol: int, nest: Any, function: Any, name: str
) -> None:
    trace = tmp_path / "trace"
    arguments = {"system": f"touch {trace}", "eval": f"open({str(trace)!r}, 'w')"}.get(name, "os")
    path = write(tmp_path, nest(Calls(function, arguments)), protocol)
    with refused(str(path), f".{name}", "refused"):
        load(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [b"(S'touch gone'\nios\nsystem\n.", b"(cos\nsystem\nS'x'\no.", b"cposix\nsystem\n(S'x'\ntR."],
    ids=["INST", "OBJ", "GLOBAL"],
)
def test_old_ways_of_naming_are_refused(tmp_path: Path, content: bytes) -> None:
    with refused("names", "system", "refused"):
        load_csr(write(tmp_path, content))


@pytest.mark.parametrize("name", ["csc_matrix", "__init__", "csr_matrix.__init__", "np"])
def test_only_the_class_itself_is_allowed_of_a_module(tmp_path: Path, name: str) -> None:
    with refused(f"scipy.sparse._csr.{name}"):
        module = b"\x80\x04\x8c\x11scipy.sparse._csr"
        load_csr(write(tmp_path, module + b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93."))


@pytest.mark.parametrize("load", LOADERS)
def test_every_truncation_is_refused(tmp_path: Path, load: Any) -> None:
    whole = {
        load_csr: pickle.dumps(sp.eye_array(2, format="csr").tocsr(), 2),
        load_array: pickle.dumps(np.arange(3), 4),
        load_adjacency: pickle.dumps(defaultdict(list, {0: [0]}), 2),
    }[load]
    for size in range(len(whole)):
        with pytest.raises(UserError):
            load(write(tmp_path, whole[:size]))


def test_garbage_and_missing_files_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        with pytest.raises(UserError):
            load_csr(write(tmp_path, rng.bytes(30)))
    with refused("can't read", "absent"):
        load_array(tmp_path / "absent")


def test_damaged_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    whole = pickle.dumps(sp.csr_matrix(np.eye(3, dtype=np.float32)), 4)
    rng = np.random.default_rng(1)
    refusals = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= int(rng.integers(1, 256))
        try:
            load_csr(write(tmp_path, bytes(damaged)))
        except UserError:
            refusals += 1
    assert refusals > len(whole) // 4


def test_a_memo_index_of_four_thousand_million_is_refused(tmp_path: Path) -> None:
    with refused("not a whole pickle", "memo index 4294967295"):
        load_adjacency(write(tmp_path, b"\x80\x02}r\xff\xff\xff\xff."))


def test_state_can_not_be_forced_on_classes(tmp_path: Path) -> None:
    for name in (b"ccollections\ndefaultdict\n", b"cnumpy\nndarray\n", b"c__builtin__\nlist\n"):
        with refused("not a whole pickle"):
            load_adjacency(write(tmp_path, name + b"(dS'__setitem__'\nNsb."))
    assert load_adjacency(write(tmp_path, {0: [0]})) == {0: [0]}


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array([{}, 1], object), "'O8'"),
        (np.array(["a"]), "'U1'"),
        (np.zeros(2, [("a", "i4")]), "'V4'"),
        (np.array(["2020"], "M8[D]"), "'M8'"),
        (np.zeros(2, complex), "'c16'"),
    ],
)
def test_arrays_of_anything_but_numbers_are_refused(tmp_path: Path, array: Any, says: str) -> None:
    with refused("dtype is", says, "only arrays of numbers"):
        load_array(write(tmp_path, array))


def array_pickle(shape: bytes, dtype_state: bytes, content: bytes) -> bytes:
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n" + shape
    return made + b"cnumpy\ndtype\n(S'i4'\nI0\nI1\ntR" + dtype_state + b"I00\n" + content + b"tb."


PLAIN = b"(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (array_pickle(b"(I2\nt", PLAIN, b"S'1234'\n"), "needs 8 bytes, not 4"),
        (array_pickle(b"(I-1\nt", PLAIN, b"S'1234'\n"), "no shape"),
        (array_pickle(b"(S'x'\nt", PLAIN, b"S'1234'\n"), "no shape"),
        (array_pickle(b"(L9223372036854775807L\nI9\nt", PLAIN, b"S'1234'\n"), "not 4"),
        (array_pickle(b"(I1\nt", PLAIN, b"(lI1\na"), "not a list"),
        (array_pickle(b"(I1\nt", PLAIN, b"V\\u2260\n"), "is text"),
        (array_pickle(b"(I1\nt", b"(I3\nS'<'\nI1\nNNI-1\nI-1\nI0\ntb", b"S'1234'\n"), "not a plain number"),
        (array_pickle(b"(I1\nt", b"(I3\nS'x'\nNNNI-1\nI-1\nI0\ntb", b"S'1234'\n"), "not a plain number"),
        ({0: [0]}, "a dict, not an array"),
    ],
)
def test_arrays_that_contradict_themselves_are_refused(tmp_path: Path, made: Any, says: str) -> None:
    with refused("made.pickle", says):
        load_array(write(tmp_path, made))


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("indices", np.array([0, 7], np.int32), "column 7 of 3"),
        ("indices", np.array([0, -1], np.int32), "column -1 of 3"),
        ("indices", np.array([0.0, 1.0]), "indices is float64"),
        ("indices", np.array([0], np.int32), "must be 2 integers"),
        ("indptr", np.array([0, 2, 1], np.int32), "falls from 2 to 1 at row 1"),
        ("indptr", np.array([0, 1, 5], np.int32), "runs from 0 to 5"),
        ("indptr", np.array([1, 1, 2], np.int32), "runs from 1 to 2"),
        ("indptr", np.array([0, 2], np.int32), "shape is 2 x 3, but indptr has 1 rows"),
        ("indptr", np.array([], np.int32), "indptr is int32 [0]"),
        ("indptr", np.array([[0, 1, 2]], np.int32), "vector of integers"),
        ("data", np.array([[1.0, 2.0]]), "data is float64 [1, 2]"),
        ("data", np.array([1, {}], object), "'O8'"),
        ("_shape", (2, 2**70), "2 x 1180591620717411303424"),
        ("_shape", (2, -3), "2 x -3"),
        ("_shape", [2, 3], "no shape of two integers"),
        ("_shape", (2, True), "no shape of two integers"),
    ],
)
def test_matrices_that_contradict_themselves_are_refused(tmp_path: Path, part: str, value: Any, says: str) -> None:
    matrix = sp.csr_matrix(([1.0, 2.0], [0, 1], [0, 1, 2]), shape=(2, 3))
    matrix.__dict__[part] = value
    with refused("made.pickle", says):
        load_csr(write(tmp_path, matrix))


def test_a_matrix_without_state_is_refused(tmp_path: Path) -> None:
    with refused("a CSR matrix, not a CSR matrix"):
        load_csr(write(tmp_path, b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81."))
    with refused("a dict, not a CSR matrix"):
        load_csr(write(tmp_path, defaultdict(list)))


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        ({0: [1]}, "neighbour 1; there are 1"),
        ({0: [0], 5: [0]}, "a node is 5"),
        ({0: [0], "a": [0]}, "a node is 'a'"),
        ({0: [0], True: [0]}, "a node is a bool"),
        ({0: (0,)}, "node 0 has a tuple"),
        ({0: [0.0]}, "neighbour a float"),
        ({0: [-1]}, "neighbour -1"),
        ({0: [2**80]}, "neighbour a int"),
        ([0], "a list, not a dict"),
    ],
)
def test_adjacencies_that_contradict_themselves_are_refused(tmp_path: Path, graph: Any, says: str) -> None:
    with refused("made.pickle", says):
        load_adjacency(write(tmp_path, graph))
