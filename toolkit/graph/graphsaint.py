"""Reads a GraphSAINT folder (Zeng et al., ICLR 2020): Reddit, Flickr, Yelp, AmazonProducts and PPI are given so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import UserError
from toolkit.graph import scipycsr
from toolkit.graph.archive import Archive
from toolkit.graph.data import BoolArray, Labels
from toolkit.graph.jsonfile import read_object
from toolkit.graph.npy import read_matrix
from toolkit.graph.raw import Masks, Raw, as_labels, mask_of_index

FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
ROLES = ("tr", "va", "te")


def is_here(folder: Path) -> bool:
    return (folder / "adj_full.npz").is_file()


def files(folder: Path) -> list[Path]:
    """All that read() looks at."""
    return [folder / name for name in FILES]


def read(folder: Path) -> Raw:
    """The whole graph with its split. Row v of adj_full lists whom v receives from.

    adj_train.npz, the edges among training nodes, is not used: training is on the whole graph, and
    the notes say so where the file is there. Raises UserError.
    """
    with Archive(folder / "adj_full.npz") as archive:
        num_nodes, targets, sources, weights = scipycsr.read_adjacency(archive)
    notes = ["the file's edge weights are not used"] if (weights != 1).any() else []
    if (folder / "adj_train.npz").exists():
        notes.append("adj_train.npz is not used: training nodes receive from all their neighbours")
    return Raw(
        name=folder.resolve().name,
        num_nodes=num_nodes,
        sources=sources,
        targets=targets,
        features=read_matrix(folder / "feats.npy"),
        labels=_class_map(folder / "class_map.json", num_nodes),
        masks=_role(folder / "role.json", num_nodes),
        notes=tuple(notes),
    )


def _class_map(path: Path, num_nodes: int) -> Labels:
    """An integer a node, or a row of 0 and 1."""
    given = read_object(path)
    if len(given) != num_nodes:
        raise UserError(f"{path}: has {len(given)} nodes, but adj_full.npz has {num_nodes}; get both anew")
    values: list[Any] = []
    for node in range(num_nodes):
        if str(node) not in given:
            raise UserError(f"{path}: lacks node {node}; the {num_nodes} nodes must be named '0', '1', ...")
        values.append(given.pop(str(node)))
    width = len(values[0]) if values and isinstance(values[0], list) else None
    for node, value in enumerate(values):
        fits = len(value) == width if isinstance(value, list) else width is None and isinstance(value, int | float)
        if not fits:
            kind = "a class" if width is None else f"a list of {width}"
            raise UserError(f"{path}: node {node} has {_told(value)}, node 0 has {kind}; give all nodes the same")
    return as_labels(_array(values, path), f"{path}: labels")


def _told(value: Any) -> str:
    if isinstance(value, int | float):
        return repr(value)
    return f"a list of {len(value)}" if isinstance(value, list) else f"a {type(value).__name__}"


def _role(path: Path, num_nodes: int) -> Masks:
    given = read_object(path)
    if set(given) != set(ROLES):
        raise UserError(f"{path}: has {sorted(given)!r:.80}; it must have tr, va and te")
    return Masks(*(_nodes(given[role], num_nodes, path, role) for role in ROLES))


def _nodes(given: Any, num_nodes: int, path: Path, role: str) -> BoolArray:
    if not isinstance(given, list):
        raise UserError(f"{path}: '{role}' is a {type(given).__name__}; it must be a list of node numbers")
    return mask_of_index(_array(given, path), num_nodes, f"{path}: '{role}'")


def _array(values: list[Any], path: Path) -> Any:
    try:
        return np.array(values)
    except ValueError as error:  # rows of different lengths, nested too deep
        raise UserError(f"{path}: is no table of numbers ({str(error)[:120]}); get the file anew") from None
