from __future__ import annotations

import io
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from toolkit.config import Data
from toolkit.errors import UserError
from toolkit.graph import archive, generate
from toolkit.graph.data import Graph
from toolkit.graph.npz import read_npz, write_npz
from toolkit.graph.prepare import prepare

from .helpers import refused, small

AS_STORED = Data(symmetrise=False, self_loops="keep", duplicates="keep", split="file")


def own(**changes: Any) -> dict[str, Any]:
    """Three nodes in our format; a change to None leaves the key out."""
    made = {
        "edge_index": np.array([[0, 1, 1], [1, 2, 2]]),
        "features": np.arange(6.0).reshape(3, 2),
        "labels": np.array([0, 1, -1]),
        **changes,
    }
    return {key: value for key, value in made.items() if value is not None}


def save(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "made.npz"
    np.savez(path, **arrays)
    return path


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array))
    return stream.getvalue()


def zipped(folder: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "made.npz"
    with zipfile.ZipFile(path, "w", method) as stream:
        for name, content in members.items():
            stream.writestr(name, content)
    return path


def header(text: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


def test_edge_index(tmp_path: Path) -> None:
    raw = read_npz(save(tmp_path, own()))
    assert (raw.name, raw.num_nodes, raw.num_classes, raw.masks, raw.notes) == ("made", 3, None, None, ())
    assert raw.sources.tolist() == [0, 1, 1] and raw.targets.tolist() == [1, 2, 2]
    assert raw.features is not None and raw.features.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_rows_of_indptr_list_in_neighbours(tmp_path: Path) -> None:
    edges = {"indptr": np.array([0, 0, 1, 3], np.uint16), "indices": np.array([0, 1, 1], np.int8), "edge_index": None}
    raw = read_npz(save(tmp_path, own(**edges)))
    assert raw.sources.tolist() == [0, 1, 1] and raw.targets.tolist() == [1, 2, 2]


def test_sparse_features(tmp_path: Path) -> None:
    dense = np.array([[0, 2.0], [0, 0], [3, 0]])
    matrix = sp.csr_matrix(dense)
    parts = {f"features_{key}": getattr(matrix, key) for key in ("data", "indices", "indptr", "shape")}
    raw = read_npz(save(tmp_path, own(features=None, **parts)))
    assert sp.issparse(raw.features)
    np.testing.assert_array_equal(raw.features.toarray(), dense)


def test_split_by_masks_and_by_indexes_agree(tmp_path: Path) -> None:
    masks = {f"{kind}_mask": np.arange(3) == at for at, kind in enumerate(("train", "val", "test"))}
    indexes = {f"{kind}_idx": np.array([at]) for at, kind in enumerate(("train", "val", "test"))}
    for split in (masks, indexes):
        read = read_npz(save(tmp_path, own(**split))).masks
        assert read is not None
        assert [mask.tolist() for mask in read] == np.eye(3, dtype=bool).tolist()


def test_features_and_labels_may_be_left_out(tmp_path: Path) -> None:
    raw = read_npz(save(tmp_path, own(features=None, labels=None, num_nodes=9)))
    assert (raw.num_nodes, raw.features, raw.labels) == (9, None, None)


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"edge_index": None}, "edge_index", "the file has no edges"),
        ({"edge_index": np.zeros((3, 2), int)}, "edge_index", "[3, 2]"),
        ({"edge_index": np.zeros((2, 3))}, "edge_index", "float64"),
        ({"edge_index": np.zeros(3, int)}, "edge_index", "matrix of integers"),
        ({"edge_index": np.array([[2**63], [0]], np.uint64)}, "edge_index", "9223372036854775808"),
        ({"edge_index": None, "indptr": np.array([0])}, "indices", "is missing"),
        ({"edge_index": None, "indices": np.array([0])}, "indptr", "is missing"),
        ({"indptr": np.array([0, 0, 0, 0]), "indices": np.array([], int)}, "edge_index", "keep one"),
        ({"edge_index": None, "indptr": np.array([0, 2, 1, 1]), "indices": np.array([0])}, "indptr", "falls from 2"),
        (
            {"edge_index": None, "indptr": np.array([0, 1]), "indices": np.array([0])},
            "features",
            "3 nodes, but 'indptr' is for 1",
        ),
        ({"features": np.array(["a", "b", "c"])}, "features", "matrix of numbers"),
        ({"features": np.zeros(3)}, "features", "[3]"),
        ({"features_data": np.zeros(3)}, "features", "keep one"),
        ({"features": None, "features_data": np.zeros(3)}, "features_indices", "is missing"),
        ({"features": np.zeros((4, 1))}, "labels", "3 nodes, but 'features' is for 4"),
        ({"num_nodes": np.int64(4)}, "features", "3 nodes, but 'num_nodes' is for 4"),
        ({"num_nodes": np.int64(-4)}, "num_nodes", "-4 nodes"),
        ({"num_nodes": np.int64(2**62)}, "num_nodes", "can be numbered"),
        ({"num_nodes": np.array([3])}, "num_nodes", "one integer"),
        ({"labels": np.array([0.0, 1, 1])}, "labels", "float64"),
        ({"labels": np.zeros((3, 1), int)}, "labels", "[3, 1]"),
        ({"labels": None, "features": None}, "num_nodes", "add it"),
        ({"num_classes": 2.0}, "num_classes", "float64"),
        ({"train_mask": np.zeros(3, bool)}, "val_mask", "is missing"),
        ({"train_idx": np.array([0])}, "val_idx", "is missing"),
        ({"train_mask": np.zeros(3, bool), "train_idx": np.array([0])}, "train_mask", "keep masks or indexes"),
        ({f"{kind}_mask": np.zeros(3, int) for kind in ("train", "val", "test")}, "train_mask", "int64 [3]"),
        ({f"{kind}_mask": np.zeros(2, bool) for kind in ("train", "val", "test")}, "train_mask", "bool [3]"),
        ({f"{kind}_idx": np.array([3]) for kind in ("train", "val", "test")}, "train_idx", "names node 3"),
        ({f"{kind}_idx": np.array([-1]) for kind in ("train", "val", "test")}, "train_idx", "names node -1"),
        ({"lables": np.zeros(3)}, "lables", "did you mean 'labels'"),
        ({"notes": np.array([1])}, "notes", "vector of text"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], key: str, says: Any) -> None:
    with refused("made.npz", f"'{key}'", says):
        read_npz(save(tmp_path, own(**changes)))


def gnn(**changes: Any) -> dict[str, Any]:
    adjacency, features = sp.csr_matrix([[0, 1, 1], [0, 0, 0], [0, 1, 0]]), sp.csr_matrix([[1, 0], [0, 5], [0, 0]])
    made: dict[str, Any] = {"labels": np.array([0, 1, 1]), "class_names": np.array(["a", "b", "c"])}
    for prefix, matrix in (("adj", adjacency), ("attr", features)):
        made |= {f"{prefix}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    return {key: value for key, value in (made | changes).items() if value is not None}


def test_gnn_benchmark(tmp_path: Path) -> None:
    raw = read_npz(save(tmp_path, gnn()))
    assert list(zip(raw.sources.tolist(), raw.targets.tolist(), strict=True)) == [(0, 1), (0, 2), (2, 1)]
    assert raw.num_classes == 3 and raw.notes == () and sp.issparse(raw.features)
    assert raw.features.toarray().tolist() == [[1, 0], [0, 5], [0, 0]]
    assert read_npz(save(tmp_path, gnn(adj_data=np.array([1, 2, 1])))).notes == (
        "the file's edge weights are not used",
    )


def test_gnn_benchmark_keeps_repeated_edges(tmp_path: Path) -> None:
    repeated = gnn(adj_data=np.ones(2), adj_indices=np.array([1, 1]), adj_indptr=np.array([0, 2, 2, 2]))
    assert read_npz(save(tmp_path, repeated)).targets.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"adj_data": None}, "adj_data", "is missing"),
        ({"attr_shape": None}, "attr_shape", "is missing"),
        ({"labels": None}, "labels", "is missing"),
        ({"adj_shape": np.array([3, 4])}, "adj_shape", "square"),
        ({"adj_shape": np.array([4, 4])}, "adj_indptr", "4 nodes need 5"),
        ({"adj_shape": np.array([3])}, "adj_shape", "two integers"),
        ({"attr_shape": np.array([3, -1])}, "attr_shape", "two integers"),
        ({"attr_indices": np.array([0, 9])}, "attr_*", "row 1 has an entry in column 9 of 2"),
    ],
)
def test_gnn_benchmark_refusals(tmp_path: Path, changes: dict[str, Any], key: str, says: str) -> None:
    with refused("made.npz", f"'{key}'", says):
        read_npz(save(tmp_path, gnn(**changes)))


def test_wordnet(tmp_path: Path) -> None:
    parts = {key: value for key, value in gnn().items() if not key.startswith("adj")}
    split = {f"{kind}_idx": np.array([at], np.int32) for at, kind in enumerate(("train", "val", "test"))}
    parts |= {"edge_index": np.array([[0, 1], [1, 2]], np.int32), "edge_type": np.array([4, 5], np.int8)} | split
    raw = read_npz(save(tmp_path, parts))
    assert (raw.sources.tolist(), raw.targets.tolist()) == ([0, 1], [1, 2])
    assert raw.masks is not None and raw.masks.val.tolist() == [False, True, False]
    assert raw.notes == ("the file's edge types are not used",)


def test_web_graph(tmp_path: Path) -> None:
    parts = {"indptr": np.array([0, 2, 2]), "indices": np.array([0, 1]), "shape": np.array([2, 2])}
    raw = read_npz(save(tmp_path, parts))
    assert (raw.sources.tolist(), raw.targets.tolist(), raw.features) == ([0, 0], [0, 1], None)
    with refused("'indptr'", "3 nodes need 4"):
        read_npz(save(tmp_path, parts | {"shape": np.array([3, 3])}))


@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_written_is_read_back_equal(tmp_path: Path, sparse: bool) -> None:
    raw = small(
        features=sp.csr_matrix(np.diag(np.arange(6)).astype(float)) if sparse else np.ones((6, 2)), notes=("n",)
    )
    graph = prepare(raw, Data(split="ratio", duplicates="keep"))
    path = tmp_path / "small.npz"
    write_npz(path, graph)
    again = prepare(read_npz(path), AS_STORED)
    for key in ("indptr", "indices", "labels", "num_classes", "train_mask", "val_mask", "test_mask"):
        np.testing.assert_array_equal(getattr(again, key), getattr(graph, key), err_msg=key)
    assert sp.issparse(again.features) == sparse and again.notes[: len(graph.notes)] == graph.notes
    assert abs(again.features - graph.features).max() == 0
    assert os.listdir(tmp_path) == ["small.npz"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph: Graph = prepare(small(), Data(split="ratio"))
    path = tmp_path / "small.npz"
    path.write_bytes(b"old")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with refused("can't write", "small.npz", "No space left"):
        write_npz(path, graph)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["small.npz"]


def test_whoever_reads_the_old_file_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "small.npz"
    path.write_bytes(b"old")
    with open(path, "rb") as reader:
        write_npz(path, prepare(small(), Data(split="ratio")))
        assert reader.read() == b"old"
    assert read_npz(path).num_nodes == 6


def test_where_a_file_can_not_be_written(tmp_path: Path) -> None:
    graph = prepare(small(), Data(split="ratio"))
    with refused("can't write", "No such file"):
        write_npz(tmp_path / "absent" / "small.npz", graph)
    (tmp_path / "plain").touch()
    with refused("can't write", "Not a directory"):
        write_npz(tmp_path / "plain" / "small.npz", graph)
    with refused("small.txt", "ends in .npz"):
        write_npz(tmp_path / "small.txt", graph)


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def test_object_arrays_are_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "made.npz"
    np.savez(path, **own(labels=np.array([Runs()], dtype=object)), allow_pickle=True)
    with refused("made.npz", "'labels'", "object", "never Python objects"):
        read_npz(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["../labels.npy", "/etc/labels.npy", "a\\b.npy", "labels", "labels.pkl", ".npy", "a b.npy"]
)
def test_odd_member_names_are_refused(tmp_path: Path, name: str) -> None:
    with refused("made.npz", "which is not an array"):
        read_npz(zipped(tmp_path, {name: npy([1])}))
    assert os.listdir(tmp_path) == ["made.npz"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path, {"labels.npy": npy([1])})
    with zipfile.ZipFile(path, "a") as stream:
        stream.writestr("labels.npy", npy([2]))
    with refused("'labels'", "twice"):
        read_npz(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_packing_is_refused(tmp_path: Path, method: int) -> None:
    with refused("'labels'", "numpy never uses"):
        read_npz(zipped(tmp_path, {"labels.npy": npy([1])}, method))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (npy([1, 2])[:-1], "16 bytes, but 15 are stored"),
        (npy([1, 2]) + b"x", "16 bytes, but 17 are stored"),
        (
            header("{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999,)}\n", bytes(8)),
            "but 8 are stored",
        ),
        (header("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}\n"), "[-1]"),
        (header("{'descr': '<i8', 'fortran_order': False, 'shape': (-1, -1)}\n", bytes(8)), "[-1, -1]"),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n", bytes(8)), "never Python objects"),
        (header("{'descr': [('a', '<i4'), ('b', '|O')], 'fortran_order': False, 'shape': (1,)}\n"), "never Python"),
        (header("{'descr': '<c16', 'fortran_order': False, 'shape': (0,)}\n"), "complex128"),
        (header("__import__('os').system('touch ran')\n"), "no readable array header"),
        (header("(" * 9000), "no readable array header"),
        (header("{'descr': '<i8'}\n"), "no readable array header"),
        (b"\x93NUMPY\x03\x00" + bytes(20), "no readable array header"),
        (b"", "no readable array header"),
        (b"garbage, not an array", "no readable array header"),
    ],
)
def test_members_that_are_not_arrays_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    members = {f"{key}.npy": npy(value) for key, value in own(labels=None).items()} | {"labels.npy": content}
    with refused("made.npz", "'labels'", says):
        read_npz(zipped(tmp_path, members))


def declared(folder: Path, file_size: int) -> Path:
    """A small file whose zip directory says that its one member unpacks to ``file_size`` bytes."""
    path = folder / "made.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as stream:
        stream.writestr("labels.npy", npy(np.zeros(1000)))
        stream.filelist[0].file_size = file_size
    return path


def test_bombs_are_refused_by_their_declared_size(tmp_path: Path) -> None:
    with refused("'labels'", "a zip bomb"):
        read_npz(declared(tmp_path, 2**31))
    with refused("'labels'", "makes the file 65 GiB unpacked; 64 GiB are read"):
        read_npz(declared(tmp_path, 65 * 2**30))


def test_many_members_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, own())
    largest = max(info.file_size for info in zipfile.ZipFile(path).infolist())
    monkeypatch.setattr(archive, "MAX_BYTES", largest)
    with refused("unpacked"):
        read_npz(path)
    monkeypatch.setattr(archive, "MAX_BYTES", 3 * largest)
    read_npz(path)


def test_a_member_that_unpacks_to_more_than_declared_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as stream:
        for key, value in own().items():
            stream.writestr(f"{key}.npy", npy(value) + (b"\0" * 10**6 if key == "labels" else b""))
        stream.filelist[-1].file_size -= 10**6
    with refused("'labels'", "Bad CRC"):
        read_npz(path)


def test_truncated_and_damaged_files_raise_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "made.npz"
    np.savez_compressed(path, **own())
    whole = path.read_bytes()
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        with refused("made.npz"):
            read_npz(path)
    rng = np.random.default_rng(0)
    refusals = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            read_npz(path)
        except UserError:
            refusals += 1
    assert refusals > len(whole) // 2


def test_files_that_are_no_zip(tmp_path: Path) -> None:
    with refused("can't read", "absent.npz", "No such file"):
        read_npz(tmp_path / "absent.npz")
    with refused("can't read", "directory"):
        read_npz(tmp_path)
    (tmp_path / "made.npz").write_bytes(npy([1]))
    with refused("made.npz", "not a whole .npz file"):
        read_npz(tmp_path / "made.npz")
    with refused("edge_index", "no edges"):
        read_npz(zipped(tmp_path, {}))


def test_the_example_of_the_documentation_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "graph-format.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    graph = prepare(read_npz(Path("triangle.npz")), Data())
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (3, 6, 2)
    assert [mask.tolist() for mask in (graph.train_mask, graph.test_mask)] == [
        [True, True, False],
        [False, False, True],
    ]


def test_made_up_notes_survive_the_file(tmp_path: Path) -> None:
    graph = prepare(generate.rmat(200, 900, 0), Data(make_up=True, classes=2, split="ratio"))
    write_npz(tmp_path / "made.npz", graph)
    assert any("made up" in note for note in prepare(read_npz(tmp_path / "made.npz"), AS_STORED).notes)
