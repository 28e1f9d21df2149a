"""Reads the ``.npz`` files of the heterophilous benchmark (Platonov et al., ICLR 2023): roman_empire and others."""

from __future__ import annotations

from toolkit.graph.archive import Archive
from toolkit.graph.data import BoolArray
from toolkit.graph.raw import Masks, Raw

KEYS = frozenset({"node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks"})


def read(archive: Archive) -> Raw:
    """The graph with all its splits, [S, n] each; an undirected edge stands once. Raises UserError."""
    archive.require(sorted(KEYS))
    features = archive.array("node_features")
    if features.ndim != 2 or features.dtype.kind not in "biuf":
        archive.refuse("node_features", f"is {features.dtype} {list(features.shape)}; it must be a matrix of numbers")
    labels = archive.ints("node_labels", 1)
    if len(labels) != len(features):
        archive.refuse("node_labels", f"is for {len(labels)} nodes, but 'node_features' is for {len(features)}")
    edges = archive.ints("edges", 2)
    if edges.shape[1] != 2:
        archive.refuse("edges", f"has shape {list(edges.shape)}; it must be [edges, 2]")
    masks: list[BoolArray] = []
    for key in ("train_masks", "val_masks", "test_masks"):
        mask = archive.array(key)
        if mask.dtype.kind != "b" or mask.ndim != 2 or mask.shape[1] != len(labels):
            archive.refuse(key, f"is {mask.dtype} {list(mask.shape)}; it must be bool [splits, {len(labels)}]")
        if not len(mask) or (masks and len(mask) != len(masks[0])):
            archive.refuse(key, f"has {len(mask)} splits; all three must have as many, at least 1")
        masks.append(mask)
    return Raw(
        name=archive.path.stem,
        num_nodes=len(labels),
        sources=edges[:, 0],
        targets=edges[:, 1],
        features=features,
        labels=labels,
        masks=Masks(*masks),
    )
