"""Takes over a graph from PyTorch Geometric: a ``Data`` object, or a data set of one.

Nothing is imported from PyTorch Geometric: an object counts by the attributes that it has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.npy import as_ints
from toolkit.graph.raw import Masks, Raw, RawFeatures, as_labels, mask_of_index

_UNUSED = ("edge_attr", "edge_weight", "edge_type")


def from_pyg(data: Any, name: str | None = None) -> Raw:
    """The graph of ``data``: edge_index, and where there are: x, y, train_mask, val_mask, test_mask.

    Masks may be [n] or [n, S]; a data set of OGB brings its split by ``get_idx_split``. An edge
    carries messages from its first end to its second, as in PyTorch Geometric. Raises UserError.
    """
    given, split = data, None
    if hasattr(data, "__len__") and not hasattr(data, "to_dict"):  # else a Data, whose length is of its attributes
        split = data.get_idx_split() if hasattr(data, "get_idx_split") else None
        given = _only_graph(data)
    called = name or str(getattr(data, "name", None) or type(data).__name__).lower()
    if hasattr(given, "edge_types"):
        raise UserError(f"{called}: has nodes or edges of several types; bitring trains on one, use to_homogeneous()")
    if getattr(given, "edge_index", None) is None:
        has = "adj_t: turn it back with edge_index" if hasattr(given, "adj_t") else "none"
        raise UserError(f"{called}: has no edge_index ({has}); give an object that has one")
    edges = as_ints(_numpy(given.edge_index), f"{called}: edge_index")
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise UserError(f"{called}: edge_index has shape {list(edges.shape)}; it must be [2, edges]")
    features = _features(getattr(given, "x", None))
    labels = None if getattr(given, "y", None) is None else as_labels(_numpy(given.y), f"{called}: labels y")
    num_nodes = int(given.num_nodes)
    unused = [key for key in _UNUSED if getattr(given, key, None) is not None]
    masks = _masks_of_split(split, num_nodes, called) if split is not None else _masks(given, num_nodes, called)
    return Raw(
        name=called,
        num_nodes=num_nodes,
        sources=edges[0],
        targets=edges[1],
        features=features,
        labels=labels,
        masks=masks,
        notes=tuple(f"{key} of the data is not used" for key in unused),
    )


def _only_graph(dataset: Any) -> Any:
    if len(dataset) != 1:
        raise UserError(f"a data set of {len(dataset)} graphs is given; bitring trains on one, give dataset[i]")
    only = dataset[0]
    return only[0] if isinstance(only, tuple) else only  # OGB: (graph, labels)


def _features(x: Any) -> RawFeatures | None:
    if x is None:
        return None
    if getattr(x, "is_sparse", False) or "sparse" in str(getattr(x, "layout", "")):
        entries = x.detach().cpu().to_sparse_coo().coalesce()
        rows, columns = entries.indices().numpy()
        return sp.csr_matrix((entries.values().numpy(), (rows, columns)), shape=tuple(x.shape))
    return _numpy(x)


def _masks(data: Any, num_nodes: int, name: str) -> Masks | None:
    found = {kind: getattr(data, f"{kind}_mask", None) for kind in Masks._fields}
    if all(mask is None for mask in found.values()):
        return None
    for kind in ("train", "test"):
        if found[kind] is None:
            raise UserError(f"{name}: has no {kind}_mask, but another; give all three or none")
    made = []
    for kind, given in found.items():
        mask = np.zeros_like(_numpy(found["train"])) if given is None else _numpy(given)
        if mask.dtype != np.bool_ or mask.ndim not in (1, 2) or mask.shape[0] != num_nodes:
            raise UserError(
                f"{name}: {kind}_mask is {mask.dtype} {list(mask.shape)}; it must be bool [{num_nodes}] "
                f"or [{num_nodes}, splits]"
            )
        made.append(np.ascontiguousarray(mask.T))
    splits = max((len(mask) for mask in made if mask.ndim == 2), default=0)
    if splits:  # WikiCS: several training masks, one for testing
        made = [np.tile(mask, (splits, 1)) if mask.ndim == 1 else mask for mask in made]
    return Masks(*made)


def _masks_of_split(split: Any, num_nodes: int, name: str) -> Masks:
    keys = ("train", "valid", "test")
    return Masks(*(mask_of_index(_numpy(split[key]), num_nodes, f"{name}: the split '{key}'") for key in keys))


def _numpy(tensor: Any) -> NDArray[Any]:
    made: NDArray[Any] = np.asarray(tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else tensor)
    return made
