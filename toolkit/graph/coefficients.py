"""Aggregation coefficients of a part's edges, and how much they weigh each message. No torch."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.graph.part import Part
from toolkit.plan import LayerStep, travelling


def one_loop_each(part: Part) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The local adjacency with exactly one self-loop a node, as (indptr, indices): GCN's and GAT's edges."""
    n = part.num_inner
    targets = np.repeat(np.arange(n), np.diff(part.indptr))
    others = part.indices != targets
    targets = np.concatenate([targets[others], np.arange(n)])
    sources = np.concatenate([part.indices[others], np.arange(n)])
    order = np.lexsort((sources, targets))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(targets, minlength=n))))
    return indptr, sources[order]


def gcn_coefficients(part: Part) -> sp.csr_matrix:
    """alpha_{u,v} = 1 / sqrt(d_u d_v), d the in-degree in the whole graph with one self-loop: [n, n + h].

    Kipf and Welling 2017, eq. 2.
    """
    indptr, indices = one_loop_each(part)
    inverse_root = 1.0 / np.sqrt(np.concatenate([part.in_degrees, part.halo_in_degrees]) + 1.0)
    targets = np.repeat(np.arange(part.num_inner), np.diff(indptr))
    return _csr(inverse_root[targets] * inverse_root[indices], indices, indptr, part)


def mean_coefficients(part: Part) -> sp.csr_matrix:
    """alpha_{u,v} = 1 / (in-neighbours of v): [n, n + h]. GraphSAGE, Hamilton et al. 2017, mean aggregator."""
    counts = np.diff(part.indptr)
    return _csr(np.repeat(1.0 / np.maximum(counts, 1), counts), part.indices, part.indptr, part)


def edge_pattern(part: Part, kind: str) -> sp.csr_matrix:
    """The coefficients of a kind of layer; ones where they are learned (gat): [n, n + h]."""
    if kind == "gat":
        indptr, indices = one_loop_each(part)
        return _csr(np.ones(len(indices)), indices, indptr, part)
    return gcn_coefficients(part) if kind == "gcn" else mean_coefficients(part)


def alpha_squared(part: Part, squares: sp.csr_matrix | None, step: LayerStep) -> NDArray[np.float64]:
    """Sum of squared coefficients from each halo row that arrives to the targets that matter: [h'].

    ``squares`` [n, h], of halo rows alone; None where coefficients are learned, and so is every sum NaN.
    """
    arrives = travelling(part.halo_reach, step)
    if squares is None:
        return np.full(int(arrives.sum()), np.nan)
    matters = slice(None) if step.max_reach is None else part.hops <= step.max_reach
    return np.asarray(squares[matters].sum(axis=0)).ravel()[arrives].astype(np.float64)


def _csr(
    values: NDArray[np.float64], indices: NDArray[np.int64], indptr: NDArray[np.int64], part: Part
) -> sp.csr_matrix:
    return sp.csr_matrix((values, indices, indptr), shape=(part.num_inner, part.num_inner + part.num_halo))
