"""Reads a graph as a folder of an edge list and arrays (docs/datasets.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from toolkit.errors import UserError, nearest
from toolkit.graph import scipycsr
from toolkit.graph.archive import Archive
from toolkit.graph.data import BoolArray, IntArray, Labels
from toolkit.graph.npy import as_ints, read_matrix, read_npy
from toolkit.graph.raw import Masks, Raw, RawFeatures, as_labels, mask_of_index
from toolkit.graph.text import read_edges

EDGES = ("edges.npy", *(f"edges.{kind}{packed}" for kind in ("csv", "tsv", "txt") for packed in ("", ".gz")))
FEATURES = ("features.npy", "features.npz")
LABELS = "labels.npy"
SPLITS = ("train.npy", "val.npy", "test.npy")
NAMES = (*EDGES, *FEATURES, LABELS, *SPLITS)
SPARSEST = 32  # ids an edge that are believed without features or labels to tell the number of nodes


def is_here(folder: Path) -> bool:
    return any((folder / name).is_file() for name in EDGES)


def files(folder: Path) -> list[Path]:
    """All that read() looks at. Raises UserError for arrays of other names: a misspelt one is not overlooked."""
    for path in sorted(folder.glob("*.np[yz]")):
        if path.name not in NAMES:
            raise UserError(f"{path}: is not a file of the format; {nearest(path.name, NAMES)}")
    found = [folder / name for name in NAMES if (folder / name).is_file()]
    _only_one(folder, EDGES, required=True)
    _only_one(folder, FEATURES, required=False)
    return found


def read(folder: Path, delimiter: str = "auto") -> Raw:
    """The graph; without features or labels, it has one more node than the largest number. Raises UserError."""
    files(folder)
    edges, notes = _edges(_only_one(folder, EDGES, required=True), delimiter)
    features = _features(_only_one(folder, FEATURES, required=False))
    labels = _labels(folder / LABELS) if (folder / LABELS).is_file() else None
    num_nodes = _num_nodes(folder, edges, features, labels)
    return Raw(
        name=folder.resolve().name,
        num_nodes=num_nodes,
        sources=edges[0],
        targets=edges[1],
        features=features,
        labels=labels,
        masks=_masks(folder, num_nodes),
        notes=notes,
    )


def _only_one(folder: Path, names: tuple[str, ...], required: bool) -> Path | None:
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise UserError(f"{found[0]} and {found[1].name} both give the {names[0].split('.')[0]}; keep one")
    if not found and required:
        raise UserError(f"{folder}: has no edge list; add one of {', '.join(names)}")
    return found[0] if found else None


def _edges(path: Path | None, delimiter: str) -> tuple[IntArray, tuple[str, ...]]:
    """[2, E]"""
    assert path is not None
    if path.suffix == ".npy":
        made = as_ints(read_npy(path), str(path))
        if made.ndim != 2 or made.shape[0] != 2:
            raise UserError(f"{path}: has shape {list(made.shape)}; it must be [2, edges], sources over targets")
        return made, ()
    pairs, more = read_edges(path, delimiter)
    return np.ascontiguousarray(pairs.T), (f"only the first two columns of {path.name} are used",) if more else ()


def _features(path: Path | None) -> RawFeatures | None:
    if path is None:
        return None
    if path.suffix == ".npy":
        return read_matrix(path)
    with Archive(path) as archive:
        return scipycsr.read_matrix(archive)


def _labels(path: Path) -> Labels:
    return as_labels(read_npy(path), f"{path}: labels")


def _num_nodes(folder: Path, edges: IntArray, features: RawFeatures | None, labels: Labels | None) -> int:
    if features is not None and labels is not None and features.shape[0] != len(labels):
        raise UserError(f"{folder}: features are for {features.shape[0]} nodes, labels for {len(labels)}; mend one")
    if features is not None:
        return int(features.shape[0])
    if labels is not None:
        return len(labels)
    largest = int(edges.max(initial=-1))
    # One number gone astray must not make a graph of as many nodes.
    if largest >= SPARSEST * max(edges.shape[1], SPARSEST):
        raise UserError(
            f"{folder}: names node {largest} in {edges.shape[1]} edges; number the nodes from 0, or give {LABELS}"
        )
    return largest + 1


def _masks(folder: Path, num_nodes: int) -> Masks | None:
    there = [(folder / name).is_file() for name in SPLITS]
    if not any(there):
        return None
    if not all(there):
        raise UserError(f"{folder}: has no {SPLITS[there.index(False)]}; a split is {', '.join(SPLITS)}")
    return Masks(*(_mask(folder / name, num_nodes) for name in SPLITS))


def _mask(path: Path, num_nodes: int) -> BoolArray:
    """Node numbers [any], or bool [n], or bool [S, n] for several splits."""
    made = read_npy(path)
    if made.dtype.kind != "b":
        return mask_of_index(made, num_nodes, str(path))
    if made.ndim not in (1, 2) or made.shape[-1] != num_nodes or not len(made):
        raise UserError(f"{path}: is bool {list(made.shape)}; it must be bool [{num_nodes}] or [splits, {num_nodes}]")
    return made
