"""Which nodes are trained on, validated on and tested on."""

from __future__ import annotations

import numpy as np

from toolkit.config import Data
from toolkit.errors import UserError
from toolkit.graph.data import IntArray, Labels, is_known
from toolkit.graph.raw import Masks


def choose(own: Masks | None, labels: Labels, num_classes: int, data: Data, name: str) -> tuple[Masks, tuple[str, ...]]:
    """The split that ``data.split`` asks for, and what a report must say of it.

    Nodes without label are in no split. Raises UserError for a split that can't be had, that
    overlaps or that has no training node.
    """
    notes: tuple[str, ...] = ()
    multi_label = labels.ndim == 2
    if data.split == "file" or (data.split == "auto" and own is not None):
        masks, notes = from_file(own, labels, name, data.split_index)
    elif data.split_index:
        raise UserError(f"data.split_index is {data.split_index}, but {name} has no split of its own; leave it out")
    elif data.split == "ratio" or (data.split == "auto" and multi_label):
        masks = by_ratio(labels, data.train_ratio, data.val_ratio, data.split_seed)
        notes = (f"random split: {data.train_ratio:g} training, {data.val_ratio:g} validation, seed {data.split_seed}",)
    elif multi_label:
        raise UserError(f"{name} has several labels a node; data.split = 'per_class' needs one, use 'ratio' or 'file'")
    else:
        masks = per_class(labels, num_classes, data.train_per_class, data.val_per_class, data.split_seed, name)
        notes = (
            f"random split: {data.train_per_class} training, {data.val_per_class} validation nodes per class, "
            f"seed {data.split_seed}",
        )
    if not masks.train.any():
        known = int(is_known(labels).sum())
        raise UserError(
            f"{name}: no node is trained on, {known} have a label; label some more or choose another data.split"
        )
    return masks, notes


def from_file(own: Masks | None, labels: Labels, name: str, index: int = 0) -> tuple[Masks, tuple[str, ...]]:
    """Split ``index`` of the file's own without the nodes that have no label; notes on those, and on the choice."""
    if own is None:
        raise UserError(f"{name}: data.split is 'file', but the file has no split; use 'per_class' or 'ratio'")
    own, chosen = _one_of(own, index, name)
    for kind, mask in zip(Masks._fields, own, strict=True):
        if mask.dtype != np.bool_ or mask.shape != labels.shape[:1]:
            is_now = f"{mask.dtype} {list(mask.shape)}"
            raise UserError(f"{name}: the {kind} mask is {is_now}; it must be bool [{len(labels)}]")
    total = own.train.astype(np.int8) + own.val + own.test
    if total.max(initial=0) > 1:
        node = int(np.argmax(total > 1))
        kinds = " and ".join(kind for kind, mask in zip(Masks._fields, own, strict=True) if mask[node])
        raise UserError(f"{name}: node {node} is in the splits {kinds}; a node may be in one only, mend the file")
    known = is_known(labels)
    unlabelled = int((total[~known] > 0).sum())
    notes = (f"{unlabelled} nodes without label are taken out of the file's split",) if unlabelled else ()
    return Masks(*(mask & known for mask in own)), (*chosen, *notes)


def _one_of(own: Masks, index: int, name: str) -> tuple[Masks, tuple[str, ...]]:
    """Split ``index`` where the masks are [S, n], and a note of which it is."""
    count = len(own.train) if own.train.ndim == 2 else 1
    if index >= count:
        there, choice = ("1 split", "0") if count == 1 else (f"{count} splits", f"0 .. {count - 1}")
        raise UserError(f"data.split_index is {index}, but {name} has {there} of its own; give {choice}")
    if own.train.ndim != 2:
        return own, ()
    if {mask.shape for mask in own} != {own.train.shape}:
        raise UserError(f"{name}: the three masks are of different shapes; give each [splits, nodes]")
    return Masks(*(mask[index] for mask in own)), (f"split {index} of the {count} of the data set",)


def per_class(labels: IntArray, num_classes: int, train: int, val: int, seed: int, name: str) -> Masks:
    """``train`` and ``val`` random nodes of each class that has any; the rest is tested.

    Raises UserError for a class that has some, but too few.
    """
    order = np.random.default_rng(seed).permutation(np.flatnonzero(labels >= 0))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels[order], minlength=num_classes)
    small = np.flatnonzero((counts > 0) & (counts < train + val))
    if len(small):
        raise UserError(
            f"{name}: class {small[0]} has {counts[small[0]]} nodes, but data.train_per_class {train} and "
            f"data.val_per_class {val} ask for {train + val}; lower them or use data.split = 'ratio'"
        )
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    group = (rank >= train).astype(np.int64) + (rank >= train + val)
    return _masks(len(labels), *(order[group == which] for which in range(3)))


def by_ratio(labels: Labels, train: float, val: float, seed: int) -> Masks:
    """Random shares of the nodes that have a label; the rest is tested."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(is_known(labels)))
    first, second = round(train * len(order)), round((train + val) * len(order))
    return _masks(len(labels), order[:first], order[first:second], order[second:])


def _masks(num_nodes: int, *groups: IntArray) -> Masks:
    masks = Masks(*(np.zeros(num_nodes, np.bool_) for _ in groups))
    for mask, group in zip(masks, groups, strict=True):
        mask[group] = True
    return masks
