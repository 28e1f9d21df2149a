"""Damaged, mistaken and malicious files of each format are refused in one sentence, and nothing of them runs."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from toolkit.config import Config, Data
from toolkit.errors import UserError
from toolkit.graph import archive, foreign, jsonfile, registry, text

from . import writers
from .helpers import refused
from .writers import random_raw


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def objects(path: Path, trace: Path) -> None:
    """A .npy of pickled objects."""
    np.save(path, np.array([Bomb(trace), None], dtype=object), allow_pickle=True)


def load(path: Path, **settings: Any) -> None:
    """The graph by the whole way; the fingerprint is taken first, as a run does."""
    data = Data(name="file", path=str(path), **settings)
    registry.fingerprint(data)
    registry.load(Config(data=data))


def truncate(path: Path, share: float = 0.7) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    return writers.arrays(tmp_path / "g", random_raw(1))


@pytest.fixture
def saint(tmp_path: Path) -> Path:
    return writers.graphsaint(tmp_path / "g", random_raw(1))


@pytest.fixture
def ogb(tmp_path: Path) -> Path:
    return writers.ogb(tmp_path / "g", random_raw(1))


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return writers.ogb(tmp_path / "g", random_raw(1), binary=True)


# What is pickled


@pytest.mark.parametrize("name", ["features.npy", "labels.npy", "train.npy", "edges.npy"])
def test_objects_in_a_folder(arrays: Path, tmp_path: Path, name: str) -> None:
    (arrays / "edges.csv").rename(arrays / "edges.txt") if name != "edges.npy" else (arrays / "edges.csv").unlink()
    objects(arrays / name, tmp_path / "ran")
    with refused(name, "never Python objects"):
        load(arrays)
    assert not (tmp_path / "ran").exists()


def test_objects_in_graphsaint_and_ogb(saint: Path, tmp_path: Path) -> None:
    objects(saint / "feats.npy", tmp_path / "ran")
    with refused("feats.npy", "never Python objects"):
        load(saint)
    np.savez(saint / "adj_full.npz", **{key: np.array([Bomb(tmp_path / "ran")], object) for key in ("data", "shape")})
    with refused("adj_full.npz"):
        load(saint)
    assert not (tmp_path / "ran").exists()


def test_objects_in_binary_ogb_and_heterophilous(binary: Path, tmp_path: Path) -> None:
    np.savez(binary / "raw" / "node-label.npz", node_label=np.array([Bomb(tmp_path / "ran")], object))
    with refused("node-label.npz", "'node_label'", "never Python objects"):
        load(binary)
    path = writers.heterophilous(tmp_path / "h.npz", random_raw(1))
    with np.load(path) as given:
        np.savez(path, **{**given, "edges": np.array([Bomb(tmp_path / "ran")], object)})
    with refused("h.npz", "'edges'", "never Python objects"):
        load(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["data.pt", "data.PTH", "graph.pkl", "graph.pickle"])
def test_pickled_graphs_are_refused_unread(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with refused(name, "can run any program", "from_pyg"):
        load(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_under_another_name(arrays: Path, tmp_path: Path) -> None:
    for name in ("features.npy", "edges.csv"):
        good = (arrays / name).read_bytes()
        (arrays / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
        with refused(name):
            load(arrays)
        (arrays / name).write_bytes(good)
    path = tmp_path / "graph.npz"
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with refused("graph.npz", "not a whole .npz"):
        load(path)
    assert not (tmp_path / "ran").exists()


# Bombs


def test_gzip_bombs(ogb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "RATIO_FREE_BYTES", 1 << 16)
    for name in ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz", "num-node-list.csv.gz"):
        good = (ogb / "raw" / name).read_bytes()
        (ogb / "raw" / name).write_bytes(gzip.compress(b"0,0\n" * (1 << 18)))
        with refused(name, "a bomb"):
            load(ogb)
        (ogb / "raw" / name).write_bytes(good)
    load(ogb)


def test_a_gzip_bomb_of_one_line(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LONGEST_LINE", 1 << 16)
    (arrays / "edges.csv").unlink()
    for start in (b"", b"1,2\n"):
        (arrays / "edges.csv.gz").write_bytes(gzip.compress(start + b"0" * (1 << 17)))
        with refused("edges.csv.gz", "has a line of"):
            load(arrays)


def test_a_large_plain_file_has_a_limit_too(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_BYTES", 100)
    with refused("edges.csv", "too large"):
        load(arrays)


def test_zip_bombs(saint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "RATIO_FREE_BYTES", 1 << 16)
    monkeypatch.setattr(archive, "MAX_RATIO", 100)
    np.savez_compressed(saint / "adj_full.npz", data=np.zeros(1 << 20))
    with refused("adj_full.npz", "'data'", "zip bomb"):
        load(saint)


def test_a_header_that_promises_too_much(arrays: Path) -> None:
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 1 << 10)}
    np.lib.format.write_array_header_1_0(stream, header)
    (arrays / "features.npy").write_bytes(stream.getvalue() + b"\0" * 64)
    with refused("features.npy", "but 64 are stored"):
        load(arrays)


def test_json_too_large(saint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfile, "MAX_BYTES", 10)
    with refused("class_map.json", "larger than"):
        load(saint)


# Paths


@pytest.mark.parametrize(
    "member", ["../out.npy", "/tmp/out.npy", "a/../../out.npy", "C:\\out.npy", "data.npy/../x.npy"]
)
def test_members_that_climb_out(saint: Path, binary: Path, member: str) -> None:
    for path in (saint / "adj_full.npz", binary / "raw" / "data.npz"):
        with zipfile.ZipFile(path, "a") as stream:
            stream.writestr(member, b"x")
    for name in ("adj_full.npz", "data.npz"):
        with refused(name, "which is not an array"):
            load(saint, format="graphsaint" if name == "adj_full.npz" else "ogb")


def test_names_in_json_are_never_paths(saint: Path) -> None:
    for name in ("../../etc/passwd", "/etc/passwd", "00", "-1", "1.0"):
        labels = json.loads((saint / "class_map.json").read_text())
        del labels["5"]
        (saint / "class_map.json").write_text(json.dumps({**labels, name: 0}))
        with refused("class_map.json", "lacks node 5"):
            load(saint)
        (saint / "class_map.json").write_text(json.dumps({**labels, "5": 0}))


@pytest.mark.parametrize("name", ["feats.npy", "role.json"])
def test_pipes_and_folders_in_place_of_files(saint: Path, name: str) -> None:
    (saint / name).unlink()
    with refused(name, "is missing", "'graphsaint'"):
        load(saint)
    os.mkfifo(saint / name)
    with refused(name, "no plain file"):
        load(saint)
    (saint / name).unlink()
    (saint / name).mkdir()
    with refused(name, "no plain file"):
        load(saint)


def test_a_pipe_in_place_of_a_graph(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "g.npz")
    with refused("g.npz", "neither a file nor a folder"):
        load(tmp_path / "g.npz")


# Truncated


@pytest.mark.parametrize(
    ("write", "names"),
    [
        (writers.arrays, ["features.npy", "labels.npy", "train.npy"]),
        (writers.graphsaint, ["adj_full.npz", "feats.npy", "class_map.json", "role.json"]),
        (
            writers.ogb,
            [
                *(f"raw/{name}.csv.gz" for name in ("edge", "node-feat", "node-label", "num-node-list")),
                *(f"split/split0/{name}.csv.gz" for name in ("train", "valid", "test")),
            ],
        ),
        (lambda folder, raw: writers.ogb(folder, raw, binary=True), ["raw/data.npz", "raw/node-label.npz"]),
    ],
    ids=["arrays", "graphsaint", "ogb", "binary"],
)
def test_truncated_and_empty_files(write: Callable[..., Path], names: list[str], tmp_path: Path) -> None:
    for name in names:
        for share in (0.0, 0.1, 0.7):
            folder = write(tmp_path / "g", random_raw(1))
            truncate(folder / name, share)
            with refused(Path(name).name):
                load(folder)


def test_a_truncated_heterophilous_file(tmp_path: Path) -> None:
    path = writers.heterophilous(tmp_path / "h.npz", random_raw(1))
    truncate(path)
    with refused("h.npz", "not a whole .npz"):
        load(path)


@pytest.mark.parametrize("at", range(0, 2000, 97))
def test_a_flipped_byte_never_escapes_as_another_error(ogb: Path, saint: Path, at: int) -> None:
    """It is refused in a sentence, or the graph is read: nothing else."""
    for path, kind in ((ogb / "raw" / "edge.csv.gz", "ogb"), (saint / "adj_full.npz", "graphsaint")):
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= 0xFF
        path.write_bytes(content)
        try:
            load(path.parent if kind == "graphsaint" else path.parent.parent, format=kind)
        except UserError as error:
            assert "\n" not in str(error)


# What doesn't fit: the array or file that is replaced, by what, and what is said


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        ("features.npy", np.zeros(30), "matrix of numbers"),
        ("features.npy", np.zeros((30, 2), complex), "complex128"),
        ("features.npy", np.full((30, 2), "a"), "matrix of numbers"),
        ("features.npy", np.full((30, 2), np.nan), "not a finite float32"),
        ("features.npy", np.full((30, 2), 1e300), "not a finite float32"),
        ("features.npy", np.zeros((29, 2)), "features are for 29 nodes, labels for 30"),
        ("features.npy", np.zeros((30, 0)), "0 columns"),
        ("labels.npy", np.zeros((30, 2, 2), int), "[30, 2, 2]"),
        ("labels.npy", np.full(30, 0.5), "a class is a whole number"),
        ("labels.npy", np.full(30, np.inf), "a class is a whole number"),
        ("labels.npy", np.full(30, -2), "-2"),
        ("labels.npy", np.full(30, 2**62), "a class is a whole number"),
        ("labels.npy", np.full(30, 2**20), "number the classes from 0"),
        ("labels.npy", np.full((30, 2), 2), "a row of several labels is of 0 and 1"),
        ("labels.npy", np.full((30, 2), -1), "left out of the split instead"),
        ("labels.npy", np.full((30, 2), np.nan), "a row of several labels is of 0 and 1"),
        ("labels.npy", np.array(["a"] * 30), "<U1"),
        ("train.npy", np.array([30]), "names node 30; nodes are 0 .. 29"),
        ("train.npy", np.array([-1]), "names node -1"),
        ("train.npy", np.array([2**64 - 1], np.uint64), "names node 18446744073709551615"),
        ("train.npy", np.array([0.5]), "vector of node numbers"),
        ("train.npy", np.zeros(29, bool), "bool [29]"),
        ("train.npy", np.zeros((0, 30), bool), "bool [0, 30]"),
        ("train.npy", np.ones(30, bool), "is in the splits train and"),
        ("train.npy", np.zeros(30, bool), "no node is trained on"),
        ("train.npy", np.zeros((2, 30), bool), "different shapes"),
    ],
)
def test_arrays_that_do_not_fit(arrays: Path, name: str, array: Any, says: str) -> None:
    np.save(arrays / name, array)
    with refused(says):
        load(arrays)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("1,2\n3,4,5\n", "columns changed from 2 to 3"),
        ("1,2\n3,x\n", "could not convert string 'x'"),
        ("1,2\n3,99999999999999999999\n", "99999999999999999999"),
        ("1,2\n1.5,2\n", "could not convert string '1.5'"),
        ("1,30\n", "edge 0 has the target 30"),
        ("1,-3\n", "edge 0 has the target -3"),
        ("a,b\nc,d\n", "could not convert string 'c'"),
        ("1\n2\n", "set data.delimiter"),
        ("1,2\n3\x00,4\n", "not a table of numbers"),
        ("1,2\n\xe9,4\n", "not a table of numbers"),
        ("1|2\n", "one column"),
    ],
)
def test_edge_lists_that_do_not_fit(arrays: Path, content: str, says: str) -> None:
    (arrays / "edges.csv").write_text(content, encoding="utf-8")
    with refused(says):
        load(arrays)


@pytest.mark.parametrize(
    "content",
    ["\ufeff1,2\n", "\n\n1,2\n", "1, 2\r\n", "% c\n# d\nfrom,to\n1,2\n", "1 2\n", "1\t2\n", "1;2", "1,2,0.5\n"],
)
def test_edge_lists_of_every_day(arrays: Path, content: str) -> None:
    (arrays / "edges.csv").write_text(content, encoding="utf-8", newline="")
    data = Data(name="folder", path=str(arrays))
    graph = registry.load(Config(data=data))
    assert graph.num_edges == 2 and graph.indices[graph.indptr[2]] == 1
    assert any("first two columns" in note for note in graph.notes) == ("0.5" in content)


def test_a_folder_that_is_not_clear(arrays: Path, tmp_path: Path) -> None:
    (arrays / "edges.tsv").write_text("1\t2\n")
    with refused("edges.csv and edges.tsv both give the edges; keep one"):
        load(arrays)
    (arrays / "edges.tsv").unlink()
    sp.save_npz(arrays / "features.npz", sp.eye_array(30, format="csr"))
    with refused("features.npy and features.npz both"):
        load(arrays)
    (arrays / "features.npy").unlink()
    load(arrays)
    sp.save_npz(arrays / "features.npz", sp.eye_array(30, format="csc"))
    with refused("features.npz", "'format' is b'csc'", ".tocsr()"):
        load(arrays)
    (arrays / "features.npz").unlink()
    np.save(arrays / "feature.npy", np.zeros(1))
    with refused("feature.npy", "did you mean 'features.npy'"):
        load(arrays)
    (arrays / "feature.npy").unlink()
    (arrays / "val.npy").unlink()
    with refused("has no val.npy"):
        load(arrays)
    empty = tmp_path / "empty"
    empty.mkdir()
    with refused("holds no graph that is known", "'graphsaint'"):
        load(empty)


def test_ids_gone_astray_do_not_make_nodes(tmp_path: Path) -> None:
    folder = writers.arrays(tmp_path / "g", replace(random_raw(1), features=None, labels=None, masks=None))
    (folder / "edges.csv").write_text("0,1\n1,2000000000\n")
    with refused("names node 2000000000 in 2 edges", "number the nodes from 0"):
        load(folder, make_up=True)


def changed_json(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return apply


def with_text(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def adjacency(**arrays: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with np.load(folder / "adj_full.npz") as given:
            kept = {**given, **arrays}
        np.savez(folder / "adj_full.npz", **{key: value for key, value in kept.items() if value is not None})

    return apply


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_text("class_map.json", DEEP), ("class_map.json", "nested too deep")),
        (with_text("role.json", '{"tr": ' + DEEP + "}"), ("role.json", "nested too deep")),
        (with_text("class_map.json", "[1, 2]"), ("holds a list",)),
        (with_text("class_map.json", '{"0": NaN}'), ("it holds NaN",)),
        (with_text("class_map.json", '{"0": 1, "0": 2}'), ("'0' is there twice",)),
        (with_text("class_map.json", '{"0": ' + "9" * 5000 + "}"), ("class_map.json", "not whole JSON")),
        (with_text("class_map.json", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")), ("not whole JSON",)),
        (changed_json("class_map.json", lambda m: {**m, "3": [0, 1]}), ("node 3 has a list of 2, node 0 has a class",)),
        (changed_json("class_map.json", lambda m: {**m, "3": "x"}), ("node 3 has a str",)),
        (changed_json("class_map.json", lambda m: {**m, "3": None}), ("node 3 has a NoneType",)),
        (changed_json("class_map.json", lambda m: {**m, "3": 2**70}), ("labels are object",)),
        (changed_json("class_map.json", lambda m: {**m, "3": 0.5}), ("node 3 has 0.5",)),
        (changed_json("class_map.json", lambda m: {**m, "30": 0}), ("has 31 nodes, but adj_full.npz has 30",)),
        (changed_json("class_map.json", lambda m: {k: [0, [1]] for k in m}), ("class_map.json",)),
        (changed_json("class_map.json", lambda m: {k: [[0, 1]] for k in m}), ("class_map.json",)),
        (changed_json("class_map.json", lambda m: {k: [] for k in m}), ("class_map.json", "[30, 0]")),
        (changed_json("class_map.json", lambda m: {k: ["a", "b"] for k in m}), ("class_map.json", "<U1")),
        (changed_json("class_map.json", lambda m: {k: [0, 2] for k in m}), ("node 0 has 2 in column 1",)),
        (changed_json("role.json", lambda m: {**m, "xx": []}), ("it must have tr, va and te",)),
        (changed_json("role.json", lambda m: {**m, "tr": {}}), ("'tr' is a dict",)),
        (changed_json("role.json", lambda m: {**m, "tr": [30]}), ("'tr' names node 30",)),
        (changed_json("role.json", lambda m: {**m, "tr": [-1]}), ("'tr' names node -1",)),
        (changed_json("role.json", lambda m: {**m, "tr": [2**70]}), ("'tr' is object",)),
        (changed_json("role.json", lambda m: {**m, "tr": [0.5]}), ("'tr' is float64",)),
        (changed_json("role.json", lambda m: {**m, "tr": [[0], [1, 2]]}), ("role.json",)),
        (changed_json("role.json", lambda m: {**m, "tr": ["../x"]}), ("'tr' is <U4",)),
        (adjacency(indptr=None), ("adj_full.npz", "'indptr' is missing")),
        (adjacency(shape=np.array([30, 31])), ("'shape' is 30 x 31",)),
        (adjacency(shape=np.array([2**40, 2**40])), ("'shape' is 1099511627776",)),
        (adjacency(shape=np.array([31, 31])), ("'indptr' has 31 entries; 31 nodes need 32",)),
        (adjacency(shape=np.array([-1, -1])), ("'shape' is [-1, -1]",)),
        (adjacency(shape=np.array(30)), ("'shape' is int64 []",)),
        (adjacency(indices=np.zeros(90)), ("'indices' is float64",)),
        (adjacency(indices=np.full(90, 30)), ("edge 0 has the source 30",)),
        (adjacency(indices=np.full(90, -7)), ("edge 0 has the source -7",)),
        (adjacency(indptr=np.arange(31)[::-1].copy()), ("adj_full.npz", "indptr falls")),
        (adjacency(indptr=np.zeros(31, int)), ("indptr runs from 0 to 0",)),
        (adjacency(data=np.ones(89)), ("'data' is float64 [89]",)),
        (adjacency(format=np.array(b"csc")), ("'format' is b'csc'",)),
        (lambda folder: np.save(folder / "feats.npy", np.zeros((29, 2))), ("features have 29 rows for 30 nodes",)),
        (lambda folder: np.save(folder / "feats.npy", np.zeros(30)), ("feats.npy", "matrix of numbers")),
    ],
)
def test_graphsaint_that_does_not_fit(saint: Path, change: Callable[[Path], None], says: tuple[str, ...]) -> None:
    change(saint)
    with refused(*says):
        load(saint)


def csv(name: str, rows: Any) -> Callable[[Path], None]:
    return lambda folder: writers.csv_gz(folder / name, rows)


def gz(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(gzip.compress(content.encode())) and None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (csv("raw/num-node-list.csv.gz", [30, 30]), ("tells of 2 graphs", "node-property sets")),
        (csv("raw/num-node-list.csv.gz", [0]), ("is for 0 nodes",)),
        (csv("raw/num-node-list.csv.gz", [2**40]), ("is for 1099511627776 nodes",)),
        (csv("raw/num-node-list.csv.gz", [31]), ("30 labels for 31 nodes",)),
        (csv("raw/edge.csv.gz", [[0, 1, 2]]), ("has 3 columns", "source and target")),
        (csv("raw/edge.csv.gz", [[0, 30]]), ("edge 0 has the target 30",)),
        (csv("raw/edge.csv.gz", [[0, 0.5]]), ("edge.csv.gz", "'0.0'")),
        (csv("raw/node-feat.csv.gz", [[0.0]] * 29), ("features have 29 rows",)),
        (gz("raw/node-feat.csv.gz", "nan\n" * 30), ("is nan, not a finite float32",)),
        (gz("raw/node-feat.csv.gz", "1e400\n" * 30), ("is inf, not a finite float32",)),
        (gz("raw/node-feat.csv.gz", "1,2\n1\n" * 15), ("columns changed from 2 to 1",)),
        (gz("raw/node-label.csv.gz", "abc\n" * 30), ("node-label.csv.gz", "'abc'")),
        (csv("raw/node-label.csv.gz", [[0, 2]] * 30), ("node 0 has 2.0 in column 1",)),
        (csv("raw/node-label.csv.gz", [0.5] * 30), ("node 0 has 0.5",)),
        (gz("raw/node-label.csv.gz", "nan\n" * 30), ("no node is trained on, 0 have a label",)),
        (csv("split/split0/train.csv.gz", [30]), ("train.csv.gz names node 30",)),
        (csv("split/split0/train.csv.gz", [[1, 2]]), ("train.csv.gz", "has 2 columns")),
        (gz("split/split0/train.csv.gz", "-1"), ("names node -1",)),
        (lambda folder: (folder / "split/split0/valid.csv.gz").unlink(), ("valid.csv.gz is missing",)),
        (lambda folder: (folder / "raw/triplet-type-list.csv.gz").touch(), ("nodes of several types",)),
        (lambda folder: (folder / "raw/edge.csv.gz").write_bytes(b"1,2\n"), ("edge.csv.gz", "not a whole gzip")),
    ],
)
def test_ogb_that_does_not_fit(ogb: Path, change: Callable[[Path], None], says: tuple[str, ...]) -> None:
    change(ogb)
    with refused(*says):
        load(ogb)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_nodes_list": np.array([3.0])}, ("tells of 1 graphs",)),
        ({"num_nodes_list": np.array([30, 1])}, ("tells of 2 graphs",)),
        ({"edge_index": np.zeros((3, 2), int)}, ("'edge_index' has shape [3, 2]",)),
        ({"edge_index": np.zeros((2, 2))}, ("'edge_index' is float64",)),
        ({"edge_index": None}, ("'edge_index' is missing",)),
        ({"node_feat": np.zeros(30)}, ("features are float64 [30]",)),
    ],
)
def test_binary_ogb_that_does_not_fit(binary: Path, changes: dict[str, Any], says: tuple[str, ...]) -> None:
    with np.load(binary / "raw" / "data.npz") as given:
        kept = {key: value for key, value in {**given, **changes}.items() if value is not None}
    np.savez(binary / "raw" / "data.npz", **kept)
    with refused(*says):
        load(binary)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"edges": np.zeros((2, 3), int)}, ("'edges' has shape [2, 3]",)),
        ({"edges": np.zeros((2, 2))}, ("'edges' is float64",)),
        ({"edges": np.array([[0, 30]])}, ("edge 0 has the target 30",)),
        ({"edges": None}, ("'edges' is missing",)),
        ({"node_features": np.zeros(30)}, ("'node_features' is float64 [30]",)),
        ({"node_labels": np.zeros(29, int)}, ("'node_labels' is for 29 nodes",)),
        ({"node_labels": np.zeros(30)}, ("'node_labels' is float64",)),
        ({"train_masks": np.zeros((2, 29), bool)}, ("'train_masks' is bool [2, 29]",)),
        ({"train_masks": np.zeros((2, 30), int)}, ("'train_masks' is int64",)),
        ({"train_masks": np.zeros((0, 30), bool)}, ("'train_masks' has 0 splits",)),
        ({"val_masks": np.zeros((3, 30), bool)}, ("'val_masks' has 3 splits",)),
    ],
)
def test_heterophilous_that_does_not_fit(tmp_path: Path, changes: dict[str, Any], says: tuple[str, ...]) -> None:
    path = writers.heterophilous(tmp_path / "h.npz", random_raw(1, splits=2))
    with np.load(path) as given:
        kept = {key: value for key, value in {**given, **changes}.items() if value is not None}
    np.savez(path, **kept)
    with refused(*says):
        load(path)


# What is asked for and isn't there


@pytest.mark.parametrize("splits", [0, 3])
def test_a_split_that_is_not_there(tmp_path: Path, splits: int) -> None:
    folder = writers.ogb(tmp_path / "g", random_raw(1, splits=splits))
    there = "3 splits of its own; give 0 .. 2" if splits else "1 split of its own; give 0"
    with refused("data.split_index is 3, but g has", there):
        load(folder, split_index=3)
    bare = writers.arrays(tmp_path / "bare", replace(random_raw(1), masks=None))
    with refused("data.split_index is 1, but bare has no split of its own"):
        load(bare, split_index=1)


def test_paths_and_formats_that_do_not_go_together(arrays: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.npz"
    own.touch()
    for given, says in (
        ({"path": str(arrays), "format": "npz"}, "data.format is 'npz'"),
        ({"path": str(own), "format": "ogb"}, "data.format is 'ogb'"),
        ({"path": str(own), "name": "folder"}, "is a file; use data.name = 'file'"),
        ({"path": str(tmp_path / "absent")}, "check data.path"),
        ({"path": str(arrays), "format": "graphsaint"}, "adj_full.npz is missing"),
    ):
        with refused(says):
            foreign.read(Data(**{"name": "file", **given}))
    for settings, says in (
        ({"format": "ogb"}, "data.format is 'ogb'"),
        ({"delimiter": "tab"}, "data.delimiter is 'tab'"),
        ({"name": "folder"}, "data.path is ''"),
        ({"split_index": 2, "split": "ratio"}, "data.split_index is 2"),
        ({"split_index": -1}, "data.split_index is -1"),
    ):
        with refused(says):
            Data(**settings)


def test_a_folder_of_two_formats(arrays: Path) -> None:
    writers.graphsaint(arrays, random_raw(1))
    with refused("'arrays' and 'graphsaint'", "data.format"):
        load(arrays)
    load(arrays, format="graphsaint")
