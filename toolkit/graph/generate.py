"""Seeded graphs made on the spot, and labels and features for graphs that have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.data import IntArray
from toolkit.graph.raw import MAX_NODES, Raw

_WEIGHT_EXPONENT = 2.7  # of the power law of sbm's expected degrees; social graphs lie between 2 and 3
_RMAT = (0.57, 0.19, 0.19, 0.05)  # Graph500's quadrant probabilities (Chakrabarti, Zhan, Faloutsos, SDM 2004)
_SMOOTHING_STEPS = 3

FloatArray = NDArray[np.float64]


def digits(knn: int) -> Raw:
    """scikit-learn's 1,797 handwritten digits, each an edge from its ``knn`` nearest to it; 64 features in 0 .. 1.

    Raises UserError if scikit-learn is not installed or ``knn`` is not below the number of digits.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("the data set 'digits' needs scikit-learn; run pip install scikit-learn") from None
    pixels, labels = load_digits(return_X_y=True)
    num_nodes = len(pixels)
    if knn >= num_nodes:
        raise UserError(f"data.knn is {knn}; the {num_nodes} digits have at most {num_nodes - 1} neighbours each")
    # Pixels are whole numbers, so these distances are exact and ties fall alike on every machine.
    squares = (pixels**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :knn]
    return Raw(
        name="digits",
        num_nodes=num_nodes,
        sources=nearest.ravel().astype(np.int64),
        targets=np.repeat(np.arange(num_nodes), knn),
        features=(pixels / 16).astype(np.float32),
        labels=labels.astype(np.int64),
        num_classes=10,
    )


def sbm(nodes: int, edges: int, features: int, classes: int, mixing: float, noise: float, seed: int) -> Raw:
    """A degree-corrected stochastic block model (Karrer and Newman, 2011) with planted, equally large classes.

    Expected degrees follow a power law. Each of ``edges`` edges picks its source by expected degree
    and its target likewise: among all nodes for a share ``mixing`` of the edges, among the source's
    class for the others. Features as in ``made_up``. Raises UserError if there are fewer nodes than classes.
    """
    _check_nodes(nodes)
    if classes > nodes:
        raise UserError(f"data.classes is {classes}, more than data.nodes {nodes}; lower it")
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(nodes) % classes)
    by_class = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[by_class], np.arange(classes + 1))
    weights = np.minimum((1 - rng.random(nodes)) ** (-1 / (_WEIGHT_EXPONENT - 1)), np.sqrt(nodes))
    # Nodes in order of class: one running sum serves draws from all nodes and from one class.
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    low, high = np.zeros(edges, np.int64), np.full(edges, nodes)
    sources = by_class[_draw(ends, low, high, rng)]
    inside = np.flatnonzero(rng.random(edges) >= mixing)
    low[inside] = first[labels[sources[inside]]]
    high[inside] = first[labels[sources[inside]] + 1]
    targets = by_class[_draw(ends, low, high, rng)]
    return Raw(
        name="sbm",
        num_nodes=nodes,
        sources=sources,
        targets=targets,
        features=_class_features(labels, classes, features, noise, rng),
        labels=labels,
        num_classes=classes,
        notes=(f"generated: stochastic block model, mixing {mixing}, noise {noise}, seed {seed}",),
    )


def rmat(nodes: int, edges: int, seed: int) -> Raw:
    """A recursive-matrix graph: skewed degrees, hubs joined to hubs; node numbers are shuffled. No features, no labels.

    Edges are drawn for the next power of two of nodes; those that miss ``nodes`` are drawn again.
    Raises UserError if there are too many nodes to number.
    """
    _check_nodes(nodes)
    rng = np.random.default_rng(seed)
    levels = (nodes - 1).bit_length()
    ends = np.empty((2, edges), np.int64)
    have = 0
    while have < edges:
        drawn = _rmat_edges(edges - have, levels, rng)
        fits = drawn[:, (drawn < nodes).all(axis=0)]
        ends[:, have : have + fits.shape[1]] = fits
        have += fits.shape[1]
    number = rng.permutation(nodes)
    return Raw(
        name="rmat",
        num_nodes=nodes,
        sources=number[ends[0]],
        targets=number[ends[1]],
        notes=(f"generated: R-MAT, seed {seed}",),
    )


def made_up(raw: Raw, features: int, classes: int, noise: float, seed: int) -> Raw:
    """``raw`` with whichever of features and labels it lacks, and a note that says so. Edges must be valid.

    Labels: the largest of ``classes`` random columns that are averaged over neighbours a few times, so that
    neighbours tend to agree. Features: a centre of length 1 for each class plus noise of deviation ``noise``
    in each of ``features`` columns; a node without label has noise alone.
    """
    rng = np.random.default_rng([seed, 1])  # not the stream of a graph generated from the same seed
    notes = []
    if raw.labels is None:
        raw = replace(raw, labels=_smooth_labels(raw, classes, rng), num_classes=classes)
        notes.append(f"labels are made up: {classes} classes that follow the graph's structure, seed {seed}")
    if raw.features is None:
        assert raw.labels is not None
        centres = int(raw.labels.max(initial=-1)) + 1
        raw = replace(raw, features=_class_features(raw.labels, centres, features, noise, rng))
        notes.append(f"features are made up: class centres plus noise {noise} in {features} columns, seed {seed}")
    return replace(raw, notes=(*raw.notes, *notes))


def _check_nodes(nodes: int) -> None:
    if not 1 <= nodes <= MAX_NODES:
        raise UserError(f"data.nodes is {nodes}; between 1 and {MAX_NODES} can be generated")


def _draw(ends: FloatArray, low: IntArray, high: IntArray, rng: np.random.Generator) -> IntArray:
    """For each draw one of the items low .. high - 1 by weight; ``ends[i]`` is the weight of all items before i."""
    at = ends[low] + rng.random(len(low)) * (ends[high] - ends[low])
    # Rounding can put a draw on the border of its range.
    return np.clip(np.searchsorted(ends, at, side="right") - 1, low, high - 1)


def _rmat_edges(count: int, levels: int, rng: np.random.Generator) -> IntArray:
    """[2, count] source and target; each level picks a quadrant of the matrix, one bit of either end."""
    a, b, c, _ = _RMAT
    ends = np.zeros((2, count), np.int64)
    for _ in range(levels):
        quadrant = rng.random(count, dtype=np.float32)
        ends <<= 1
        ends[0] |= quadrant >= a + b
        ends[1] |= ((quadrant >= a) & (quadrant < a + b)) | (quadrant >= a + b + c)
    return ends


def _class_features(
    labels: IntArray, classes: int, columns: int, noise: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    # Unit centres: at noise 1 a node alone tells little of its class, the mean of its neighbours much.
    centres = rng.standard_normal((classes, columns))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    rows = rng.standard_normal((len(labels), columns), dtype=np.float32)
    rows *= np.float32(noise)
    known = labels >= 0
    rows[known] += centres.astype(np.float32)[labels[known]]
    return rows


def _smooth_labels(raw: Raw, classes: int, rng: np.random.Generator) -> IntArray:
    n = raw.num_nodes
    edges = sp.csr_matrix((np.ones(len(raw.sources)), (raw.targets, raw.sources)), shape=(n, n))
    around = edges + edges.T + sp.eye_array(n, format="csr")
    weight = around @ np.ones((n, 1))
    columns: FloatArray = rng.standard_normal((n, classes))
    for _ in range(_SMOOTHING_STEPS):
        columns = (around @ columns) / weight
    # Without this, one column's mean over the whole graph would win nearly everywhere.
    columns -= columns.mean(axis=0)
    columns /= np.maximum(columns.std(axis=0), np.finfo(np.float64).tiny)
    labels: IntArray = columns.argmax(axis=1).astype(np.int64)
    return labels
