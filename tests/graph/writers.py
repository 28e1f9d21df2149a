"""Writes a graph in each format that bitring reads, as the programs do that made the format."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch

from toolkit.config import Data
from toolkit.graph.prepare import prepare
from toolkit.graph.raw import Masks, Raw

AS_STORED = Data(symmetrise=False, self_loops="keep", duplicates="keep")


def random_raw(seed: int, nodes: int = 30, edges: int = 90, labels: str = "single", splits: int = 0) -> Raw:
    """Directed, with repeats, self-loops and isolated nodes. ``splits``: 0 is one plain split."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 4, (max(splits, 1), nodes))  # 3: in no split
    group[:, 0] = 0  # of three nodes or more, one is trained on
    masks = Masks(*(group == which if splits else (group == which)[0] for which in range(3)))
    single = rng.integers(0, min(4, max(nodes, 2)), nodes)
    return Raw(
        name="random",
        num_nodes=nodes,
        sources=rng.integers(0, nodes, edges),
        targets=rng.integers(0, nodes, edges),
        features=rng.standard_normal((nodes, 5)).astype(np.float32),
        labels=single if labels == "single" else rng.integers(0, 2, (nodes, 3)).astype(np.uint8),
        masks=masks,
    )


def arrays_sha256(raw: Raw, data: Data = AS_STORED) -> str:
    """Of all arrays of the prepared graph: equal for equal graphs, whatever they were read from."""
    graph = prepare(raw, data)
    features: Any = graph.features
    dense = features.toarray() if sp.issparse(features) else features
    digest = hashlib.sha256()
    for array in (graph.indptr, graph.indices, dense, graph.labels, graph.train_mask, graph.val_mask, graph.test_mask):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def csv_gz(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(repr(value) for value in np.atleast_1d(row).tolist()) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))


def arrays(folder: Path, raw: Raw, edges: str = "edges.csv", mark: str = ",", sparse: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if edges.endswith(".npy"):
        np.save(folder / edges, np.stack([raw.sources, raw.targets]))
    else:
        ends = zip(raw.sources.tolist(), raw.targets.tolist(), strict=True)
        text = "# an edge list\nsource" + mark + "target\n" + "".join(f"{s}{mark}{t}\n" for s, t in ends)
        (folder / edges).write_bytes(gzip.compress(text.encode()) if edges.endswith(".gz") else text.encode())
    if sparse:
        sp.save_npz(folder / "features.npz", sp.csr_matrix(raw.features))
    elif raw.features is not None:
        np.save(folder / "features.npy", raw.features)
    if raw.labels is not None:
        np.save(folder / "labels.npy", raw.labels)
    if raw.masks is not None:
        for kind, mask in zip(Masks._fields, raw.masks, strict=True):
            np.save(folder / f"{kind}.npy", mask if mask.ndim == 2 else np.flatnonzero(mask))
    return folder


def graphsaint(folder: Path, raw: Raw) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    assert raw.labels is not None and raw.masks is not None
    order = np.argsort(raw.targets, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(raw.targets, minlength=raw.num_nodes))])
    entries = (np.ones(len(order)), raw.sources[order], indptr)
    sp.save_npz(folder / "adj_full.npz", sp.csr_matrix(entries, shape=(raw.num_nodes, raw.num_nodes)))
    np.save(folder / "feats.npy", raw.features)
    labels = {str(node): label for node, label in enumerate(raw.labels.tolist())}
    (folder / "class_map.json").write_text(json.dumps(labels))
    role = {key: np.flatnonzero(m).tolist() for key, m in zip(("tr", "va", "te"), raw.masks, strict=True)}
    (folder / "role.json").write_text(json.dumps(role))
    return folder


def ogb(folder: Path, raw: Raw, binary: bool = False) -> Path:
    inner = folder / "raw"
    inner.mkdir(parents=True, exist_ok=True)
    assert raw.labels is not None and raw.masks is not None and raw.features is not None
    edges = np.stack([raw.sources, raw.targets])
    if binary:
        counts = {"num_nodes_list": np.array([raw.num_nodes]), "num_edges_list": np.array([len(raw.sources)])}
        np.savez(inner / "data.npz", edge_index=edges, node_feat=raw.features, **counts)
        column = raw.labels.astype(np.float32)
        np.savez(inner / "node-label.npz", node_label=column[:, None] if column.ndim == 1 else column)
    else:
        csv_gz(inner / "edge.csv.gz", edges.T)
        csv_gz(inner / "node-feat.csv.gz", raw.features)
        csv_gz(inner / "node-label.csv.gz", raw.labels)
        csv_gz(inner / "num-node-list.csv.gz", [raw.num_nodes])
        csv_gz(inner / "num-edge-list.csv.gz", [len(raw.sources)])
    several = raw.masks.train.ndim == 2
    for kind, mask in zip(("train", "valid", "test"), raw.masks, strict=True):
        for at, row in enumerate(mask if several else mask[None]):
            csv_gz(folder / "split" / f"split{at}" / f"{kind}.csv.gz", np.flatnonzero(row))
    return folder


def heterophilous(path: Path, raw: Raw) -> Path:
    assert raw.masks is not None
    masks = {f"{kind}_masks": np.atleast_2d(mask) for kind, mask in zip(Masks._fields, raw.masks, strict=True)}
    edges = np.stack([raw.sources, raw.targets], axis=1)
    np.savez(path, node_features=raw.features, node_labels=raw.labels, edges=edges, **masks)
    return path


def pyg(raw: Raw) -> Any:
    from torch_geometric.data import Data as PygData

    assert raw.labels is not None and raw.masks is not None
    masks = {
        f"{kind}_mask": torch.from_numpy(mask.T.copy()) for kind, mask in zip(Masks._fields, raw.masks, strict=True)
    }
    labels = torch.from_numpy(raw.labels)
    return PygData(
        x=torch.from_numpy(np.asarray(raw.features)),
        edge_index=torch.from_numpy(np.stack([raw.sources, raw.targets])),
        y=labels.float() if labels.dim() == 2 else labels,
        **masks,
    )


def networkx(raw: Raw) -> tuple[nx.MultiDiGraph, dict[str, Any]]:
    """The graph, and the arguments that from_networkx needs besides."""
    graph = nx.MultiDiGraph(name="random")
    graph.add_nodes_from(range(raw.num_nodes))
    graph.add_edges_from(zip(raw.sources.tolist(), raw.targets.tolist(), strict=True))
    return graph, {"features": raw.features, "labels": raw.labels, "split": raw.masks}
