"""Which rank owns which node: METIS, random or range; the best of several seeds and numberings."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from toolkit import config
from toolkit.errors import UserError
from toolkit.graph.data import Graph, IntArray
from toolkit.graph.locality import undirected
from toolkit.graph.messages import find_messages, hops_to_training

log = logging.getLogger("bitring")
LARGEST_SHARE = 1.5  # nodes of the largest part over an equal share, above which METIS is asked again
SWAPS, SWAP_WORK = 32, 1 << 22  # larger numbers of parts: swaps taken, channels looked at for each
EXHAUSTIVE_RANKS = 8  # up to here all (N-1)! numberings are tried: 5,040 at 8 ranks, 0.1 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One candidate partition: bytes an epoch under the plan it was judged by."""

    seed: int
    total_bytes: int
    busiest_bytes: int  # most that one rank sends and receives
    ring_bytes: int  # slowest channel of each round, summed, as numbered by the method
    ring_bytes_chosen: int  # the same under the numbering kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """The partition kept, and every try."""

    parts: IntArray  # [n] rank of each node
    tries: tuple[Try, ...]
    kept: int  # index into tries


def assign(graph: Graph, ranks: int, settings: config.Partition, weight_by_reach: NDArray[np.float64]) -> Assignment:
    """Partition ``graph`` over ``ranks``; keep the best try by settings.choose_by.

    ``weight_by_reach``: bytes an epoch of a message of each reach (plan.bytes_by_reach).
    Raises UserError when there are more ranks than nodes.
    """
    if not 1 <= ranks <= graph.num_nodes:
        raise UserError(
            f"{ranks} ranks for the {graph.num_nodes} nodes of {graph.name}: "
            "every rank needs a node; ask for fewer ranks"
        )
    hops = hops_to_training(graph)
    candidates, tries, remarks = [], [], []
    for seed, parts, remark in _candidates(graph, ranks, settings):
        channels = find_messages(graph, parts, hops).channel_sums(ranks, weight_by_reach)
        new_of_old = best_numbering(channels) if settings.numbering == "ring" else np.arange(ranks)
        old_of_new = np.argsort(new_of_old)
        candidates.append(new_of_old[parts])
        remarks.append(remark)
        tries.append(
            Try(
                seed=seed,
                total_bytes=round(channels.sum()),
                busiest_bytes=round(busiest(channels)),
                ring_bytes=round(ring_cost(channels)),
                ring_bytes_chosen=round(ring_cost(channels[np.ix_(old_of_new, old_of_new)])),
            )
        )
    by_total = settings.choose_by == "total"
    kept = min(
        range(len(tries)),
        key=lambda i: (
            (tries[i].total_bytes, tries[i].busiest_bytes)
            if by_total
            else (tries[i].busiest_bytes, tries[i].total_bytes)
        ),
    )
    if remarks[kept]:  # of the partition kept alone: a sentence, not one a try
        log.warning("%s", remarks[kept])
    return Assignment(parts=candidates[kept], tries=tuple(tries), kept=kept)


def _candidates(graph: Graph, ranks: int, settings: config.Partition) -> Iterator[tuple[int, IntArray, str]]:
    """Seed, parts, and what is to be told where these parts are kept."""
    if ranks == 1:
        yield settings.seed, np.zeros(graph.num_nodes, dtype=np.int64), ""
    elif settings.method == "range":
        yield settings.seed, range_parts(_balance_weights(graph, settings.balance), ranks), ""
    else:
        adjacency = undirected_pattern(graph) if settings.method == "metis" else None
        for seed in range(settings.seed, settings.seed + settings.tries):
            if adjacency is None:
                yield seed, random_parts(graph.num_nodes, ranks, seed), ""
            else:
                yield seed, *even_parts(graph, adjacency, ranks, settings, seed)


def undirected_pattern(graph: Graph) -> sp.csr_matrix:
    """The adjacency of a graph that METIS may be given."""
    targets = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    return undirected(graph.indices, targets, graph.num_nodes)


def even_parts(
    graph: Graph, adjacency: sp.csr_matrix, ranks: int, settings: config.Partition, seed: int
) -> tuple[IntArray, str]:
    """metis_parts, with nodes alone where balancing training nodes as well fails; and a sentence on it, or none.

    Two constraints are too many for METIS on some graphs (a star, hubs; objective = "volume" over many parts): it
    then leaves one part several times too large, in nodes and mostly in training nodes too, without a word.
    """
    parts = metis_parts(graph, adjacency, ranks, settings, seed)
    if settings.balance != "train" or (both := largest_share(parts, ranks)) <= LARGEST_SHARE:
        return parts, ""
    other = metis_parts(graph, adjacency, ranks, dataclasses.replace(settings, balance="nodes"), seed)
    alone = largest_share(other, ranks)
    parts, which = (other, "latter") if alone < both else (parts, "former")
    remedy = "" if min(both, alone) <= LARGEST_SHARE else '; partition.method = "random" makes equal parts'
    return parts, (
        f'with nodes and training nodes balanced (partition.balance = "train") METIS gives the largest of {ranks} '
        f"parts {both:.2f} times an equal share of the nodes, over the limit of {LARGEST_SHARE}, and with nodes alone "
        f"{alone:.2f} times: the {which} is kept{remedy}"
    )


def largest_share(parts: IntArray, ranks: int) -> float:
    """Nodes of the largest part over an equal share rounded up: 1 is the least that any partition has."""
    return float(np.bincount(parts, minlength=ranks).max() / -(-len(parts) // ranks))


def metis_parts(graph: Graph, adjacency: sp.csr_matrix, ranks: int, settings: config.Partition, seed: int) -> IntArray:
    """METIS k-way partition: [n] rank of each node, no part empty.

    Balancing training nodes adds a second constraint beside the nodes, so that neither drifts.
    """
    import pymetis

    weights: IntArray | None = None
    if settings.balance == "edges":
        weights = _balance_weights(graph, "edges")
    elif settings.balance == "train":
        nodes = np.ones(graph.num_nodes, dtype=np.int64)
        weights = np.stack([nodes, graph.train_mask.astype(np.int64)], axis=1).ravel()
    result = pymetis.part_graph(
        ranks,
        pymetis.CSRAdjacency(adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.int64)),
        vweights=None if weights is None else weights.tolist(),
        # + 1: to METIS's generator 0 and 1 are the same seed
        options=pymetis.Options(seed=seed + 1, objtype=1 if settings.objective == "volume" else 0),
        recursive=False,
    )
    return fill_empty_parts(np.asarray(result.vertex_part, dtype=np.int64), ranks)


def fill_empty_parts(parts: IntArray, ranks: int) -> IntArray:
    """METIS may leave parts empty without a word: give each a node of the largest part."""
    parts = parts.copy()
    sizes = np.bincount(parts, minlength=ranks)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        parts[np.flatnonzero(parts == largest)[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return parts


def random_parts(nodes: int, ranks: int, seed: int) -> IntArray:
    """Equal parts of a seeded random order."""
    order = np.random.default_rng(seed).permutation(nodes)
    parts = np.empty(nodes, dtype=np.int64)
    parts[order] = np.arange(nodes) * ranks // nodes
    return parts


def range_parts(weights: IntArray, ranks: int) -> IntArray:
    """Consecutive node numbers, cut where the weights have reached an equal share; no part empty."""
    n = len(weights)
    cumulative = np.cumsum(weights)
    cuts = np.searchsorted(cumulative, cumulative[-1] * np.arange(1, ranks) / ranks, side="left") + 1
    for i in range(ranks - 1):  # at least one node on either side of each cut
        lowest = cuts[i - 1] + 1 if i else 1
        cuts[i] = min(max(cuts[i], lowest), n - (ranks - 1 - i))
    return np.searchsorted(cuts, np.arange(n), side="right").astype(np.int64)


def _balance_weights(graph: Graph, balance: str) -> IntArray:
    if balance == "edges":
        return graph.in_degrees() + 1
    if balance == "train":
        return graph.train_mask.astype(np.int64) * graph.num_nodes + 1
    return np.ones(graph.num_nodes, dtype=np.int64)


def busiest(channels: NDArray[Any]) -> float:
    """Most that one rank sends and receives: [N, N] -> a number."""
    return float((channels.sum(0) + channels.sum(1)).max())


def ring_cost(channels: NDArray[np.float64]) -> float:
    """Sum over the ring's rounds of the slowest channel's bytes (rounds in step)."""
    return float(_ring_costs(channels, np.arange(len(channels))[None, :])[0])


def _ring_costs(channels: NDArray[np.float64], old_of_new: NDArray[np.int64]) -> NDArray[np.float64]:
    """ring_cost of many numberings at once: old_of_new is [P, N], the result [P]."""
    ranks = len(channels)
    costs = np.zeros(len(old_of_new))
    for i in range(1, ranks):
        costs += channels[old_of_new, np.roll(old_of_new, -i, axis=1)].max(axis=1)
    return costs


def best_numbering(channels: NDArray[np.float64]) -> IntArray:
    """The renumbering of parts with the least ring_cost: new number of each old one, [N].

    Rotations cost the same, so part 0 stays. Up to EXHAUSTIVE_RANKS all are tried, then swaps of
    two parts are taken while they help.
    """
    ranks = len(channels)
    if ranks <= 2:
        return np.arange(ranks)
    if ranks <= EXHAUSTIVE_RANKS:
        rest = np.array(list(itertools.permutations(range(1, ranks))), dtype=np.int64)
        numberings = np.concatenate([np.zeros((len(rest), 1), dtype=np.int64), rest], axis=1)
        best = numberings[_ring_costs(channels, numberings).argmin()]
    else:
        best = _improve_by_swaps(channels, np.arange(ranks))
    return np.argsort(best)


def _improve_by_swaps(channels: NDArray[np.float64], order: IntArray) -> IntArray:
    """Take the best swap of two parts while one helps; of very many parts, the best of a seeded sample, SWAPS times."""
    ranks = len(order)
    everything = np.array(list(itertools.combinations(range(1, ranks), 2)))
    sample = max(16, SWAP_WORK // ranks**2)
    rng = np.random.default_rng(0)
    cost = _ring_costs(channels, order[None, :])[0]
    for _ in range(SWAPS):
        pairs = everything if len(everything) <= sample else rng.choice(everything, sample, replace=False)
        swapped = np.repeat(order[None, :], len(pairs), axis=0)
        rows = np.arange(len(pairs))
        swapped[rows, pairs[:, 0]], swapped[rows, pairs[:, 1]] = order[pairs[:, 1]], order[pairs[:, 0]]
        costs = _ring_costs(channels, swapped)
        if costs.min() < cost:
            order, cost = swapped[costs.argmin()], costs.min()
        elif len(everything) <= sample:
            break
    return order
