from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from toolkit.graph.planetoid import read_planetoid

from .helpers import refused

TRAIN, ALL, TEST, MISSING = 4, 510, 6, (512, 515)  # nodes 510 .. 517 without 512, 515


@pytest.fixture
def parts() -> dict[str, Any]:
    """A set of 518 nodes, of which two have no row."""
    rng = np.random.default_rng(0)
    nodes = ALL + TEST + len(MISSING)
    allx = sp.random(ALL, 7, density=0.4, format="csr", dtype=np.float32, random_state=1)
    ally = np.eye(3, dtype=np.int32)[rng.integers(3, size=ALL)]
    graph = defaultdict(list, {node: rng.integers(nodes, size=3).tolist() for node in range(nodes)})
    test = rng.permutation([node for node in range(ALL, nodes) if node not in MISSING])
    return {
        "x": allx[:TRAIN],
        "y": ally[:TRAIN],
        "allx": allx,
        "ally": ally,
        "tx": sp.csr_matrix(np.arange(1, TEST * 7 + 1, dtype=np.float32).reshape(TEST, 7)),
        "ty": np.eye(3, dtype=np.int32)[rng.integers(3, size=TEST)],
        "graph": graph,
        "test.index": "".join(f"{node}\n" for node in test),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def to_files(parts: dict[str, Any]) -> Path:
        for part, made in parts.items():
            file = tmp_path / f"ind.made.{part}"
            file.write_bytes(made.encode() if isinstance(made, str) else pickle.dumps(made, 4))
        return tmp_path

    return to_files


def oracle(parts: dict[str, Any]) -> tuple[Any, Any]:
    """Dense features and labels, row by row as the format says."""
    nodes = len(parts["graph"])
    features = np.zeros((nodes, parts["allx"].shape[1]), np.float32)
    labels = np.full(nodes, -1)
    for node in range(parts["allx"].shape[0]):
        features[node] = parts["allx"][[node]].toarray()[0]
        labels[node] = list(parts["ally"][node]).index(1)
    for row, line in enumerate(parts["test.index"].split()):
        features[int(line)] = parts["tx"][[row]].toarray()[0]
        labels[int(line)] = list(parts["ty"][row]).index(1)
    return features, labels


def test_rows_lie_where_the_dense_oracle_puts_them(parts: dict[str, Any], write: Any) -> None:
    raw = read_planetoid(write(parts), "made")
    features, labels = oracle(parts)
    assert sp.issparse(raw.features) and raw.labels is not None
    np.testing.assert_array_equal(raw.features.toarray(), features)
    np.testing.assert_array_equal(raw.labels, labels)
    assert raw.num_classes == 3
    # The placement matters in this set: test.index is not ascending.
    assert parts["test.index"].split() != sorted(parts["test.index"].split())


def test_missing_nodes_have_nothing(parts: dict[str, Any], write: Any) -> None:
    raw = read_planetoid(write(parts), "made")
    assert raw.labels is not None and raw.masks is not None and sp.issparse(raw.features)
    assert np.flatnonzero(raw.labels == -1).tolist() == list(MISSING)
    assert raw.features[list(MISSING)].nnz == 0
    assert not any(mask[list(MISSING)].any() for mask in raw.masks)


def test_the_public_split(parts: dict[str, Any], write: Any) -> None:
    masks = read_planetoid(write(parts), "made").masks
    assert masks is not None
    assert np.flatnonzero(masks.train).tolist() == list(range(TRAIN))
    assert np.flatnonzero(masks.val).tolist() == list(range(TRAIN, TRAIN + 500))
    assert np.flatnonzero(masks.test).tolist() == sorted(map(int, parts["test.index"].split()))


def test_a_row_without_class_is_unlabelled_and_in_no_split(parts: dict[str, Any], write: Any) -> None:
    parts["ally"][TRAIN + 1] = 0
    raw = read_planetoid(write(parts), "made")
    assert raw.labels is not None and raw.masks is not None
    assert raw.labels[TRAIN + 1] == -1 and not raw.masks.val[TRAIN + 1] and raw.masks.val.sum() == 499


def test_edges_are_the_lists(parts: dict[str, Any], write: Any) -> None:
    raw = read_planetoid(write(parts), "made")
    expected = [(node, other) for node, others in parts["graph"].items() for other in others]
    assert list(zip(raw.sources.tolist(), raw.targets.tolist(), strict=True)) == expected


def changed(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts.update({key: change(parts[key])})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (changed("test.index", lambda t: t.split("\n", 1)[1]), ("tx", "has 6 rows, but 5 are expected")),
        (changed("ty", lambda a: a[1:]), ("ty", "has 5 rows, but 6")),
        (changed("ally", lambda a: a[:-1]), ("ally", "has 509 rows, but 510")),
        (changed("tx", lambda a: a[:, :-1]), ("tx", "columns differ")),
        (changed("ty", lambda a: a[:, :-1]), ("columns differ",)),
        (changed("x", lambda a: a * 2), ("x and y are not the first rows",)),
        (changed("x", lambda a: a[1:]), ("x and y are not the first rows",)),
        (changed("y", lambda a: a[:, ::-1]), ("x and y are not the first rows",)),
        (changed("ally", lambda a: a + 1), ("ally", "row 0 names more than one class")),
        (changed("ally", lambda a: a[:, 0]), ("ally", "has shape (510,)")),
        (changed("test.index", lambda t: t + "9\n"), ("test.index", "names node 9", "510 .. 517")),
        (changed("test.index", lambda t: t + "518\n"), ("test.index", "names node 518")),
        (changed("test.index", lambda t: t + t[:4]), ("test.index", "twice")),
        (changed("test.index", lambda t: t + "five\n"), ("test.index", "one node number per line")),
        (changed("test.index", lambda t: t + "9" * 30), ("test.index", "one node number per line")),
        (changed("test.index", lambda t: t + "\u0665"), ("test.index", "one node number per line")),
    ],
)
def test_files_that_disagree_are_refused(parts: dict[str, Any], write: Any, damage: Any, says: tuple[str, ...]) -> None:
    damage(parts)
    with refused(*says):
        read_planetoid(write(parts), "made")


def test_too_few_nodes_for_validation(parts: dict[str, Any], write: Any) -> None:
    parts |= {"x": parts["allx"][:11], "y": parts["ally"][:11]}
    with refused("after 11 training nodes, 499 are left", "500"):
        read_planetoid(write(parts), "made")


@pytest.mark.parametrize("part", ["x", "ty", "graph", "test.index"])
def test_a_missing_file_is_named(parts: dict[str, Any], write: Any, part: str) -> None:
    folder = write(parts)
    (folder / f"ind.made.{part}").unlink()
    with refused("can't read", f"ind.made.{part}", "No such file"):
        read_planetoid(folder, "made")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # plain pickle finds scipy's old module names
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_the_real_sets_equal_the_dense_oracle(data_root: Path, name: str) -> None:
    folder = data_root / name
    parts: dict[str, Any] = {"test.index": (folder / f"ind.{name}.test.index").read_text()}
    for part in ("allx", "ally", "tx", "ty", "graph"):
        parts[part] = pickle.loads((folder / f"ind.{name}.{part}").read_bytes(), encoding="latin1")
    features, labels = oracle(parts)
    raw = read_planetoid(folder, name)
    assert sp.issparse(raw.features)
    np.testing.assert_array_equal(raw.features.toarray(), features)
    np.testing.assert_array_equal(raw.labels, labels)
