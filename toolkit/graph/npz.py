"""Reads the ``.npz`` graphs in use, told apart by their keys, and reads and writes our own (docs/graph-format.md)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from toolkit.errors import UserError, nearest
from toolkit.graph import heterophilous
from toolkit.graph.archive import Archive
from toolkit.graph.data import Graph, IntArray, Labels
from toolkit.graph.raw import (
    MAX_NODES,
    Masks,
    Raw,
    RawFeatures,
    checked_csr,
    checked_indptr,
    mask_of_index,
    multi_hot,
)

_EDGES = ("edge_index", "indptr", "indices")
_FEATURES = tuple(f"features_{part}" for part in ("data", "indices", "indptr", "shape"))
_MASKS = ("train_mask", "val_mask", "test_mask")
_INDEXES = ("train_idx", "val_idx", "test_idx")
LONGEST_NOTE = 300  # characters
OWN_KEYS = (*_EDGES, "features", *_FEATURES, "labels", "num_nodes", "num_classes", *_MASKS, *_INDEXES, "notes")


def read_npz(path: Path) -> Raw:
    """The graph of an ``.npz`` file: gnn-benchmark, heterophilous, wordnet, web graph or our own format.

    Raises UserError, naming the file and the key, for a file that is damaged, unsafe or lacks a key.
    """
    with Archive(path) as archive:
        if "adj_indptr" in archive:
            return _gnn_benchmark(archive)
        if {"edge_index", "edge_type"} <= archive.keys:
            return _wordnet(archive)
        if archive.keys == {"indptr", "indices", "shape"}:
            return _web_graph(archive)
        if "node_features" in archive:
            return heterophilous.read(archive)
        return _own(archive)


def write_npz(path: Path, graph: Graph) -> None:
    """Write ``graph`` in our own format, whole or not at all. Raises UserError if the folder can't be written to."""
    arrays: dict[str, Any] = {
        "indptr": graph.indptr,
        "indices": graph.indices,
        "labels": graph.labels,
        "num_nodes": np.int64(graph.num_nodes),
        "num_classes": np.int64(graph.num_classes),
        "train_mask": graph.train_mask,
        "val_mask": graph.val_mask,
        "test_mask": graph.test_mask,
    }
    _write(path, arrays | _feature_arrays(graph.features), graph.notes)


def write_raw(path: Path, raw: Raw) -> None:
    """Write ``raw`` in our own format as it is: edges as stored, all its splits. Raises UserError."""
    arrays: dict[str, Any] = {
        "edge_index": np.stack([raw.sources, raw.targets]),
        "num_nodes": np.int64(raw.num_nodes),
    }
    if raw.features is not None:
        arrays |= _feature_arrays(raw.features)
    if raw.labels is not None:
        arrays["labels"] = raw.labels
    if raw.num_classes is not None:
        arrays["num_classes"] = np.int64(raw.num_classes)
    if raw.masks is not None:
        arrays |= zip(_MASKS, raw.masks, strict=True)
    _write(path, arrays, raw.notes)


def _feature_arrays(features: Any) -> dict[str, Any]:
    if not sp.issparse(features):
        return {"features": features}
    parts = (features.data, features.indices, features.indptr, np.array(features.shape, np.int64))
    return dict(zip(_FEATURES, parts, strict=True))


def _write(path: Path, arrays: dict[str, Any], notes: tuple[str, ...]) -> None:
    if path.suffix != ".npz":
        raise UserError(f"the file is called {path.name!r}; give it a name that ends in .npz")
    if notes:
        arrays["notes"] = np.array(notes)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as stream:
            np.savez_compressed(stream, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}; name a folder that exists and has room") from None
    finally:
        with contextlib.suppress(OSError):  # gone after the rename, or never made
            temporary.unlink()


def _gnn_benchmark(archive: Archive) -> Raw:
    num_nodes = _square(archive, "adj_shape")
    sources, targets = _rows(archive, "adj_", num_nodes)
    weights = archive.array("adj_data")
    return Raw(
        name=archive.path.stem,
        num_nodes=num_nodes,
        sources=sources,
        targets=targets,
        features=_csr(archive, "attr"),
        labels=archive.ints("labels", 1),
        num_classes=_num_class_names(archive),
        notes=("the file's edge weights are not used",) if (weights != 1).any() else (),
    )


def _wordnet(archive: Archive) -> Raw:
    features = _csr(archive, "attr")
    sources, targets = _edge_index(archive)
    return Raw(
        name=archive.path.stem,
        num_nodes=features.shape[0],
        sources=sources,
        targets=targets,
        features=features,
        labels=archive.ints("labels", 1),
        num_classes=_num_class_names(archive),
        masks=_split(archive, features.shape[0]),
        notes=("the file's edge types are not used",),
    )


def _web_graph(archive: Archive) -> Raw:
    num_nodes = _square(archive, "shape")
    pages, links = _rows(archive, "", num_nodes)
    return Raw(name=archive.path.stem, num_nodes=num_nodes, sources=pages, targets=links)


def _own(archive: Archive) -> Raw:
    for key in sorted(archive.keys.difference(OWN_KEYS)):
        archive.refuse(key, f"is not a key of the graph format; {nearest(key, OWN_KEYS)}")
    if "indptr" in archive or "indices" in archive:
        if "edge_index" in archive:
            archive.refuse("edge_index", "and 'indptr' both give the edges; keep one")
        targets, sources = _rows(archive, "")  # row v lists the in-neighbours of v
    else:
        sources, targets = _edge_index(archive)
    features = _own_features(archive)
    labels = _labels(archive) if "labels" in archive else None
    num_nodes = _num_nodes(archive, features, labels)
    return Raw(
        name=archive.path.stem,
        num_nodes=num_nodes,
        sources=sources,
        targets=targets,
        features=features,
        labels=labels,
        num_classes=int(archive.ints("num_classes", 0)) if "num_classes" in archive else None,
        masks=_split(archive, num_nodes),
        notes=_notes(archive),
    )


def _num_nodes(archive: Archive, features: RawFeatures | None, labels: Labels | None) -> int:
    """``num_nodes``, or the rows of whatever has one row per node; all that are there must agree."""
    counts: dict[str, int] = {}
    if "num_nodes" in archive:
        counts["num_nodes"] = int(archive.ints("num_nodes", 0))
    if "indptr" in archive:
        counts["indptr"] = archive.shape("indptr")[0] - 1
    if features is not None:
        counts["features"] = features.shape[0]
    if labels is not None:
        counts["labels"] = len(labels)
    if not counts:
        archive.refuse("num_nodes", "is missing, and neither features nor labels tell how many nodes there are; add it")
    first, num_nodes = next(iter(counts.items()))
    if not 0 <= num_nodes <= MAX_NODES:
        archive.refuse(first, f"is for {num_nodes} nodes; between 0 and {MAX_NODES} can be numbered")
    for key, count in counts.items():
        if count != num_nodes:
            archive.refuse(key, f"is for {count} nodes, but '{first}' is for {num_nodes}; make them agree")
    return num_nodes


def _labels(archive: Archive) -> Labels:
    if len(archive.shape("labels")) == 2:
        return multi_hot(archive.array("labels"), f"{archive.path}: 'labels'")
    return archive.ints("labels", 1)


def _own_features(archive: Archive) -> RawFeatures | None:
    sparse = any(key in archive for key in _FEATURES)
    if "features" not in archive:
        return _csr(archive, "features") if sparse else None
    if sparse:
        archive.refuse("features", "is there both dense and sparse; keep one")
    features = archive.array("features")
    if features.ndim != 2 or features.dtype.kind not in "biuf":
        archive.refuse("features", f"is {features.dtype} {list(features.shape)}; it must be a matrix of numbers")
    return features


def _csr(archive: Archive, prefix: str) -> sp.csr_matrix:
    archive.require(f"{prefix}_{part}" for part in ("data", "indices", "indptr", "shape"))
    data, indices, indptr = (archive.array(f"{prefix}_{part}") for part in ("data", "indices", "indptr"))
    shape = _shape(archive, f"{prefix}_shape")
    return checked_csr(data, indices, indptr, shape, f"{archive.path}: '{prefix}_*'")


def _shape(archive: Archive, key: str) -> tuple[int, int]:
    shape = archive.ints(key, 1)
    if len(shape) != 2 or shape.min() < 0:
        archive.refuse(key, f"is {shape[:4].tolist()}; it must be two integers, rows and columns")
    return int(shape[0]), int(shape[1])


def _square(archive: Archive, key: str) -> int:
    rows, columns = _shape(archive, key)
    if rows != columns:
        archive.refuse(key, f"is {rows} x {columns}; an adjacency matrix is square")
    return rows


def _rows(archive: Archive, prefix: str, num_nodes: int | None = None) -> tuple[IntArray, IntArray]:
    """The row and the column of each entry of ``indptr``, ``indices``; columns are not checked yet."""
    key = f"{prefix}indptr"
    archive.require((key, f"{prefix}indices"))
    indices = archive.ints(f"{prefix}indices", 1)
    indptr = checked_indptr(archive.array(key), len(indices), f"{archive.path}: '{key}'")
    if num_nodes is not None and len(indptr) != num_nodes + 1:
        archive.refuse(key, f"has {len(indptr)} entries; {num_nodes} nodes need {num_nodes + 1}")
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices


def _edge_index(archive: Archive) -> tuple[IntArray, IntArray]:
    if "edge_index" not in archive:
        archive.refuse("edge_index", "is missing, and so are 'indptr' and 'indices': the file has no edges; add them")
    edges = archive.ints("edge_index", 2)
    if edges.shape[0] != 2:
        archive.refuse("edge_index", f"has shape {list(edges.shape)}; it must be [2, edges], sources over targets")
    return edges[0], edges[1]


def _num_class_names(archive: Archive) -> int | None:
    return archive.shape("class_names")[0] if "class_names" in archive and archive.shape("class_names") else None


def _split(archive: Archive, num_nodes: int) -> Masks | None:
    by_mask, by_index = ([key for key in keys if key in archive] for keys in (_MASKS, _INDEXES))
    if by_mask and by_index:
        archive.refuse(by_mask[0], f"and '{by_index[0]}' both give the split; keep masks or indexes")
    if by_mask:
        archive.require(_MASKS)
        masks = Masks(*(_mask(archive, key, num_nodes) for key in _MASKS))
        for key, mask in zip(_MASKS, masks, strict=True):
            if mask.shape != masks.train.shape:
                archive.refuse(key, f"is bool {list(mask.shape)}, but '{_MASKS[0]}' is {list(masks.train.shape)}")
        return masks
    if by_index:
        archive.require(_INDEXES)
        return Masks(*(_mask_of_index(archive, key, num_nodes) for key in _INDEXES))
    return None


def _mask(archive: Archive, key: str, num_nodes: int) -> Any:
    mask = archive.array(key)
    if mask.dtype != np.bool_ or mask.ndim not in (1, 2) or mask.shape[-1] != num_nodes or not len(mask):
        is_now = f"{mask.dtype} {list(mask.shape)}"
        archive.refuse(key, f"is {is_now}; it must be bool [{num_nodes}], or [splits, {num_nodes}]")
    return mask


def _mask_of_index(archive: Archive, key: str, num_nodes: int) -> Any:
    return mask_of_index(archive.ints(key, 1), num_nodes, f"{archive.path}: '{key}'")


def _notes(archive: Archive) -> tuple[str, ...]:
    if "notes" not in archive:
        return ()
    notes = archive.array("notes")
    if notes.dtype.kind != "U" or notes.ndim != 1:
        archive.refuse("notes", f"is {notes.dtype} {list(notes.shape)}; it must be a vector of text")
    # a foreign file's text goes to a terminal: nothing in it may steer that
    return tuple("".join(c if c.isprintable() else "?" for c in str(note))[:LONGEST_NOTE] for note in notes)
