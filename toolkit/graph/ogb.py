"""Reads the folder of a node-property set of the Open Graph Benchmark, without its package.

Text: raw/edge.csv.gz, node-feat.csv.gz, node-label.csv.gz and num-node-list.csv.gz, or, binary: raw/data.npz
and node-label.npz. Either way, split/<name>/train.csv.gz, valid.csv.gz and test.csv.gz.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.archive import Archive
from toolkit.graph.data import IntArray
from toolkit.graph.raw import MAX_NODES, Masks, Raw, as_labels, mask_of_index
from toolkit.graph.text import read_table

TEXT = ("edge.csv.gz", "node-label.csv.gz", "num-node-list.csv.gz")
BINARY = ("data.npz", "node-label.npz")
SPLITS = ("train", "valid", "test")
_UNUSED = {"edge-feat.csv.gz": "edge features", "node_year.csv.gz": "years", "node_species.csv.gz": "species"}


def is_here(folder: Path) -> bool:
    raw = folder / "raw"
    return any((raw / name).is_file() for name in ("edge.csv.gz", "data.npz", "triplet-type-list.csv.gz"))


def files(folder: Path) -> list[Path]:
    """All that read() looks at. Raises UserError for a set that can't be read at all."""
    raw = folder / "raw"
    if (raw / "triplet-type-list.csv.gz").is_file():
        raise UserError(f"{folder}: has nodes of several types, and bitring trains on one type; take one of them out")
    if (raw / "data.npz").is_file():
        found = [raw / name for name in BINARY]
    else:
        found = [raw / name for name in TEXT]
        if (raw / "node-feat.csv.gz").is_file():
            found.append(raw / "node-feat.csv.gz")
    return [*found, *(split / f"{kind}.csv.gz" for split in _splits(folder) for kind in SPLITS)]


def read(folder: Path) -> Raw:
    """The graph with its splits, by name; sets without node features have none. Raises UserError."""
    raw = folder / "raw"
    num_nodes, edges, features, labels = _binary(raw) if (raw / "data.npz").is_file() else _text(raw)
    made = as_labels(labels, f"{raw}: labels")
    if len(made) != num_nodes:
        raise UserError(f"{raw}: has {len(made)} labels for {num_nodes} nodes; get the files anew")
    masks, notes = _masks(folder, num_nodes)
    unused = [what for name, what in _UNUSED.items() if (raw / name).is_file()]
    return Raw(
        name=folder.resolve().name,
        num_nodes=num_nodes,
        sources=edges[0],
        targets=edges[1],
        features=features,
        labels=made,
        masks=masks,
        notes=(*(f"the set's {what} are not used" for what in unused), *notes),
    )


_Arrays = tuple[int, IntArray, NDArray[Any] | None, NDArray[Any]]  # nodes, edges [2, E], features, labels


def _text(raw: Path) -> _Arrays:
    num_nodes = _one_graph(read_table(raw / "num-node-list.csv.gz", np.int64), raw / "num-node-list.csv.gz")
    edges = read_table(raw / "edge.csv.gz", np.int64)
    if edges.shape[1] != 2 and edges.size:
        raise UserError(f"{raw / 'edge.csv.gz'}: has {edges.shape[1]} columns; it must have 2, source and target")
    path = raw / "node-feat.csv.gz"
    features = read_table(path, np.float32) if path.is_file() else None
    labels = read_table(raw / "node-label.csv.gz", np.float64)
    return num_nodes, np.ascontiguousarray(edges.reshape(-1, 2).T), features, labels


def _binary(raw: Path) -> _Arrays:
    with Archive(raw / "data.npz") as archive:
        archive.require(("num_nodes_list", "edge_index"))
        num_nodes = _one_graph(archive.array("num_nodes_list"), raw / "data.npz")
        edges = archive.ints("edge_index", 2)
        if edges.shape[0] != 2:
            archive.refuse("edge_index", f"has shape {list(edges.shape)}; it must be [2, edges]")
        features = archive.array("node_feat") if "node_feat" in archive else None
    with Archive(raw / "node-label.npz") as archive:
        return num_nodes, edges, features, archive.array("node_label")


def _one_graph(counts: NDArray[Any], path: Path) -> int:
    counts = counts.reshape(-1)
    if len(counts) != 1 or counts.dtype.kind not in "iu":
        raise UserError(f"{path}: tells of {len(counts)} graphs; only sets of one graph, node-property sets, are read")
    if not 0 < counts[0] <= MAX_NODES:
        raise UserError(f"{path}: is for {counts[0]} nodes; between 1 and {MAX_NODES} can be numbered")
    return int(counts[0])


def _splits(folder: Path) -> list[Path]:
    """The folders of splits that are there as text, by name."""
    split = folder / "split"
    return sorted(path for path in split.iterdir() if (path / "train.csv.gz").is_file()) if split.is_dir() else []


def _masks(folder: Path, num_nodes: int) -> tuple[Masks | None, tuple[str, ...]]:
    found = _splits(folder)
    if not found:
        pickled = sorted(folder.glob("split/*/split_dict.pt"))
        return None, ("the set's split is a pickle (split_dict.pt), which is not read",) if pickled else ()
    rows = [[_mask(split / f"{kind}.csv.gz", num_nodes) for kind in SPLITS] for split in found]
    if len(found) == 1:
        return Masks(*rows[0]), ()
    names = ", ".join(ascii(split.name) for split in found)
    return Masks(*(np.stack(masks) for masks in zip(*rows, strict=True))), (f"splits of the set: {names}",)


def _mask(path: Path, num_nodes: int) -> Any:
    table = read_table(path, np.int64)
    if table.size and table.shape[1] != 1:
        raise UserError(f"{path}: has {table.shape[1]} columns; it must have one, node numbers")
    return mask_of_index(table.reshape(-1), num_nodes, str(path))
