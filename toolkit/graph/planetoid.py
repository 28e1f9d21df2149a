"""Reads the eight files of a Planetoid set (Yang et al., ICML 2016): cora, citeseer, pubmed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.data import IntArray
from toolkit.graph.raw import Masks, Raw
from toolkit.graph.unpickle import load_adjacency, load_array, load_csr

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_NUM_VALIDATION = 500


def file_names(name: str) -> tuple[str, ...]:
    """The eight files of the set ``name``."""
    return tuple(f"ind.{name}.{part}" for part in PARTS)


def read_planetoid(folder: Path, name: str) -> Raw:
    """The set ``name`` with its public split.

    ``allx`` is stacked over ``tx``; row i of ``tx`` belongs to the node on line i of ``test.index``.
    Nodes that no row belongs to (15 of citeseer) have zero features, label -1 and are in no split.
    Raises UserError for a missing, damaged or unsafe file.
    """
    path = {part: folder / file for part, file in zip(PARTS, file_names(name), strict=True)}
    neighbours = load_adjacency(path["graph"])
    num_nodes = len(neighbours)
    allx, tx = load_csr(path["allx"]), load_csr(path["tx"])
    ally, ty = (_classes(load_array(path[part]), path[part]) for part in ("ally", "ty"))
    test = _test_index(path["test.index"], allx.shape[0], num_nodes)
    for part, rows, expected in (("tx", tx.shape[0], len(test)), ("ty", len(ty[0]), len(test)),
                                 ("ally", len(ally[0]), allx.shape[0])):  # fmt: skip
        if rows != expected:
            raise UserError(f"{path[part]}: has {rows} rows, but {expected} are expected; get the eight files anew")
    if tx.shape[1] != allx.shape[1] or ty[1] != ally[1]:
        raise UserError(f"{path['tx']}: columns differ from those of allx; get the eight files anew")
    num_train = _num_train(path, allx, ally)

    node_of_row = np.concatenate([np.arange(allx.shape[0]), test])
    rows = sp.vstack([allx, tx]).tocoo()
    features = sp.csr_matrix((rows.data, (node_of_row[rows.row], rows.col)), shape=(num_nodes, allx.shape[1]))
    labels = np.full(num_nodes, -1, np.int64)
    labels[node_of_row] = np.concatenate([ally[0], ty[0]])
    degrees = np.fromiter(map(len, neighbours.values()), np.int64, num_nodes)
    return Raw(
        name=name,
        num_nodes=num_nodes,
        sources=np.repeat(np.fromiter(neighbours, np.int64, num_nodes), degrees),
        targets=np.fromiter(chain.from_iterable(neighbours.values()), np.int64, int(degrees.sum())),
        features=features,
        labels=labels,
        num_classes=ally[1],
        masks=_public_split(num_nodes, num_train, test, labels),
    )


def _classes(one_hot: NDArray[Any], path: Path) -> tuple[IntArray, int]:
    """The class of each row (-1 for a row of zeros) and the number of classes."""
    if one_hot.ndim != 2 or one_hot.shape[1] == 0:
        raise UserError(f"{path}: has shape {one_hot.shape}; it must hold one column per class, get the file anew")
    wrong = np.flatnonzero((one_hot != 0).sum(axis=1) > 1)
    if len(wrong):
        raise UserError(f"{path}: row {wrong[0]} names more than one class; get the file anew")
    labels = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    return labels.astype(np.int64), one_hot.shape[1]


def _test_index(path: Path, first: int, num_nodes: int) -> IntArray:
    try:
        lines = path.read_text(encoding="ascii").split()
        test = np.array([int(line) for line in lines], np.int64)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}; check the folder of the data set") from None
    except (ValueError, OverflowError):
        raise UserError(f"{path}: must hold one node number per line; get the file anew") from None
    wrong = test[(test < first) | (test >= num_nodes)]
    if len(wrong):
        raise UserError(f"{path}: names node {wrong[0]}; test nodes are {first} .. {num_nodes - 1}, get the file anew")
    if len(np.unique(test)) != len(test):
        raise UserError(f"{path}: names a node twice; get the file anew")
    return test


def _num_train(path: dict[str, Path], allx: sp.csr_matrix, ally: tuple[IntArray, int]) -> int:
    """len(y), after checking that x and y are the head of allx and ally."""
    x = load_csr(path["x"])
    labels, num_classes = _classes(load_array(path["y"]), path["y"])
    count = len(labels)
    same = x.shape == (count, allx.shape[1]) and count <= allx.shape[0] and (x != allx[:count]).nnz == 0
    if not same or num_classes != ally[1] or not np.array_equal(labels, ally[0][:count]):
        raise UserError(f"{path['x']}: x and y are not the first rows of allx and ally; get the eight files anew")
    if count + _NUM_VALIDATION > allx.shape[0]:
        raise UserError(
            f"{path['y']}: after {count} training nodes, {allx.shape[0] - count} are left for validation; "
            f"the public split needs {_NUM_VALIDATION}"
        )
    return count


def _public_split(num_nodes: int, num_train: int, test: IntArray, labels: IntArray) -> Masks:
    masks = Masks(*(np.zeros(num_nodes, np.bool_) for _ in range(3)))
    masks.train[:num_train] = True
    masks.val[num_train : num_train + _NUM_VALIDATION] = True
    masks.test[test] = True
    for mask in masks:
        mask &= labels >= 0
    return masks
