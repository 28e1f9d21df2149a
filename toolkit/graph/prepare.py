"""From a graph as stored to the graph that is trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from toolkit.config import WIDEST, Data
from toolkit.errors import UserError
from toolkit.graph import split
from toolkit.graph.data import Graph, IntArray, Labels
from toolkit.graph.features import normalise, project, to_float32
from toolkit.graph.generate import made_up
from toolkit.graph.raw import MAX_NODES, Raw, multi_hot


def prepare(raw: Raw, data: Data) -> Graph:
    """Check ``raw`` and prepare it as ``data`` says: edges, features, split.

    Raises UserError for whatever can't be trained on, naming the node, the value and the remedy.
    """
    _check_edges(raw)
    if raw.labels is not None:
        raw = replace(raw, num_classes=_check_labels(raw, raw.labels))
    if data.make_up:
        raw = _made_up(raw, data)
    if raw.features is None or raw.labels is None:
        lacks = " and ".join(key for key in ("features", "labels") if getattr(raw, key) is None)
        raise UserError(f"{raw.name} has no {lacks}; data.make_up = true makes them up, and reports will say so")
    assert raw.num_classes is not None  # comes with the labels, checked or made up
    notes = list(raw.notes)
    features = to_float32(raw.features, raw.name)
    if features.shape[0] != raw.num_nodes:
        raise UserError(f"{raw.name}: features have {features.shape[0]} rows for {raw.num_nodes} nodes; give one each")
    features = normalise(features, data.feature_norm, raw.name)
    if data.project_to:
        change = f"{features.shape[1]} to {data.project_to} columns, seed {data.generator_seed}"
        notes.append(f"features are projected at random from {change}")
        features = project(features, data.project_to, data.generator_seed)
    masks, split_notes = split.choose(raw.masks, raw.labels, raw.num_classes, data, raw.name)
    indptr, indices = to_csr(raw, data)
    notes.append(_edge_note(len(raw.sources), len(indices), data))
    return Graph(
        name=raw.name,
        indptr=indptr,
        indices=indices,
        features=features,
        labels=raw.labels.astype(np.uint8 if raw.labels.ndim == 2 else np.int64),
        num_classes=raw.num_classes,
        train_mask=masks.train,
        val_mask=masks.val,
        test_mask=masks.test,
        notes=(*notes, *split_notes),
    )


def to_csr(raw: Raw, data: Data) -> tuple[IntArray, IntArray]:
    """``indptr`` [n + 1] and ``indices`` [E]: the in-neighbours of each node, ascending.

    A self-loop is its own reverse: symmetrising does not repeat it.
    """
    sources, targets = raw.sources, raw.targets
    loops = sources == targets
    if data.self_loops == "drop" and loops.any():
        sources, targets, loops = sources[~loops], targets[~loops], loops[:0]
    # One number per edge: sorting them sorts by target, then by source.
    keys = targets * raw.num_nodes + sources
    if data.symmetrise:
        reverse = sources * raw.num_nodes + targets
        keys = np.concatenate([keys, reverse[~loops] if len(loops) else reverse])
    keys.sort()
    if data.duplicates == "drop" and len(keys):
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    rows, indices = np.divmod(keys, raw.num_nodes)
    indptr = np.zeros(raw.num_nodes + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=raw.num_nodes), out=indptr[1:])
    return indptr, indices


def _check_edges(raw: Raw) -> None:
    if not 1 <= raw.num_nodes <= MAX_NODES:
        raise UserError(f"{raw.name} has {raw.num_nodes} nodes; a graph needs 1 to {MAX_NODES}")
    if raw.sources.shape != raw.targets.shape or raw.sources.ndim != 1:
        ends = f"{list(raw.sources.shape)} sources and {list(raw.targets.shape)} targets"
        raise UserError(f"{raw.name}: the edges have {ends}; give one of each per edge")
    for end, ids in (("source", raw.sources), ("target", raw.targets)):
        outside = np.flatnonzero((ids < 0) | (ids >= raw.num_nodes))
        if len(outside):
            edge = outside[0]
            raise UserError(f"{raw.name}: edge {edge} has the {end} {ids[edge]}; nodes are 0 .. {raw.num_nodes - 1}")


def _made_up(raw: Raw, data: Data) -> Raw:
    """``raw`` with whatever it lacks; of several labels a node, features follow the first."""
    labels, several = raw.labels, raw.labels is not None and raw.labels.ndim == 2
    if several:
        assert labels is not None
        raw = replace(raw, labels=np.where(labels.any(axis=1), labels.argmax(axis=1), -1))
    made = made_up(raw, data.features, data.classes, data.noise, data.generator_seed)
    return replace(made, labels=labels) if several else made


def _check_labels(raw: Raw, labels: Labels) -> int:
    """The number of classes, after checking that every label is one of them, or -1."""
    if labels.ndim == 2:
        return _check_multi_label(raw, labels)
    if labels.shape != (raw.num_nodes,) or labels.dtype.kind not in "iu":
        raise UserError(
            f"{raw.name}: labels are {labels.dtype} {list(labels.shape)}; give each of {raw.num_nodes} nodes an integer"
        )
    num_classes = raw.num_classes
    if num_classes is None:
        num_classes = int(labels.max()) + 1
        # One number gone astray must not widen the last layer to it.
        if num_classes > max(raw.num_nodes, 2):
            node = int(np.argmax(labels))
            raise UserError(
                f"{raw.name}: node {node} has the label {labels[node]} in a graph of {raw.num_nodes} nodes; "
                "number the classes from 0"
            )
    if raw.num_classes is not None and not 1 <= num_classes <= WIDEST:
        raise UserError(f"{raw.name}: {num_classes} classes are declared; give a number from 1 to {WIDEST:,}")
    outside = np.flatnonzero((labels < -1) | (labels >= num_classes))
    if len(outside):
        node = outside[0]
        raise UserError(
            f"{raw.name}: node {node} has the label {labels[node]}; classes are 0 .. {num_classes - 1}, -1 is unknown"
        )
    return num_classes


def _check_multi_label(raw: Raw, labels: Labels) -> int:
    columns = int(multi_hot(labels, f"{raw.name}: labels").shape[1])
    if len(labels) != raw.num_nodes:
        raise UserError(f"{raw.name}: labels have {len(labels)} rows for {raw.num_nodes} nodes; give one each")
    if columns > WIDEST or raw.num_classes not in (None, columns):
        raise UserError(
            f"{raw.name}: labels have {columns} columns and {raw.num_classes or WIDEST} classes are "
            f"{'declared' if raw.num_classes else 'the most'}; make them agree"
        )
    return columns


def _edge_note(stored: int, kept: int, data: Data) -> str:
    did = [
        *(["symmetrised"] if data.symmetrise else []),
        "self-loops " + ("dropped" if data.self_loops == "drop" else "kept"),
        "repeats " + ("dropped" if data.duplicates == "drop" else "kept"),
    ]
    return f"edges: {stored:,} as stored, {kept:,} directed ones used ({', '.join(did)})"
