"""Takes over a graph from networkx."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.raw import Masks, Raw, RawFeatures, as_labels

SPLIT_NAMES = {"train": 0, "val": 1, "test": 2}


def from_networkx(
    graph: Any,
    features: RawFeatures | str | None = None,
    labels: NDArray[Any] | str | None = None,
    split: Masks | str | None = None,
    name: str | None = None,
) -> Raw:
    """A networkx graph, directed or not, multi or not; nodes are numbered in the order of ``graph.nodes``.

    ``features`` and ``labels`` are arrays in that order, or names of node attributes; ``split`` too: masks,
    or an attribute that is 'train', 'val', 'test' or None. An undirected edge carries messages both ways.
    Raises UserError.
    """
    called = name or str(getattr(graph, "name", "") or "networkx")
    number = {node: at for at, node in enumerate(graph.nodes)}
    ends = np.fromiter((number[end] for edge in graph.edges() for end in edge), np.int64).reshape(-1, 2)
    sources, targets = ends[:, 0], ends[:, 1]
    if not graph.is_directed():
        between = sources != targets  # a self-loop is its own reverse
        sources, targets = (
            np.concatenate([sources, targets[between]]),
            np.concatenate([targets, sources[between]]),
        )
    features = _attribute(graph, features, called) if isinstance(features, str) else features
    labels = _attribute(graph, labels, called) if isinstance(labels, str) else labels
    return Raw(
        name=called,
        num_nodes=len(number),
        sources=sources,
        targets=targets,
        features=features,
        labels=None if labels is None else as_labels(np.asarray(labels), f"{called}: labels"),
        masks=_masks(graph, split, called) if isinstance(split, str) else split,
    )


def _attribute(graph: Any, key: str, name: str) -> NDArray[Any]:
    values = []
    for node, attributes in graph.nodes(data=True):
        if key not in attributes:
            raise UserError(f"{name}: node {node!r:.40} has no attribute '{key}'; give every node one")
        values.append(attributes[key])
    try:
        return np.array(values)
    except ValueError:
        lengths = sorted({len(value) if hasattr(value, "__len__") else 1 for value in chain(values)})
        raise UserError(f"{name}: the attribute '{key}' is of lengths {lengths[:4]}; make them equal") from None


def _masks(graph: Any, key: str, name: str) -> Masks:
    masks = np.zeros((3, len(graph)), np.bool_)
    for at, (node, attributes) in enumerate(graph.nodes(data=True)):
        value = attributes.get(key)
        if value is None:
            continue
        if value not in SPLIT_NAMES:
            raise UserError(f"{name}: node {node!r:.40} is in the split {value!r:.40}; use 'train', 'val' or 'test'")
        masks[SPLIT_NAMES[value], at] = True
    return Masks(*masks)
