"""Which messages cross in an exchange, and where each stands in the buffers.

A listing is what a rank sends or receives, peer after peer; both ends of a channel list its messages in
the same order, so that nothing but payload travels. A layout gives every message its width and its place.
One buffer per channel:

    [4 bytes of metadata a message][1-bit rows][2-bit rows][4-bit rows][8-bit rows][unquantised rows]

Each part in the order of the listing; unquantised rows have no metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.graph.part import Part
from toolkit.keyed import mix64, mix_array
from toolkit.plan import LayerStep, travelling

Bits = NDArray[np.uint8]
Sizes = Callable[[int, int], tuple[int, int]]  # entries, bits -> bytes of metadata, bytes of codes
NewBuffer = Callable[[int], Tensor]  # bytes -> uint8 of that size


def host_buffer(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """The m messages that one rank sends, or receives, in one exchange."""

    rows: Tensor  # [m] row of the matrix that a message is read from, or goes to
    mask_rows: Tensor  # [m] row of its dropout mask
    lent: bool  # inner rows that others borrow; else halo rows
    counts: tuple[int, ...]  # [N] messages to, or from, each peer
    nodes: NDArray[np.int64]  # [m] global ids
    ids: NDArray[np.uint64]  # [m] node and rank that borrows it: what keys a message's noise and its drawn width


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """What one rank lends and borrows in one layer step. Forward lends go out, backward they come in."""

    lent: Listing  # inner rows, by borrower
    borrowed: Listing  # halo rows, by owner
    num_halo: int


def make_route(part: Part, step: LayerStep) -> Route:
    """The rows of ``part`` that travel in ``step``."""
    lends, borrows = travelling(part.send_reach, step), travelling(part.halo_reach, step)
    ranks = np.arange(part.ranks)
    borrowers, owners = np.repeat(ranks, part.send_counts)[lends], np.repeat(ranks, part.halo_counts)[borrows]
    rows, slots = part.send_rows[lends], np.flatnonzero(borrows)
    lent_nodes, borrowed_nodes = part.nodes[rows], part.halo_nodes[slots]
    return Route(
        lent=Listing(
            lent=True,
            rows=torch.from_numpy(rows),
            mask_rows=torch.from_numpy(rows),
            counts=tuple(np.bincount(borrowers, minlength=part.ranks).tolist()),
            nodes=lent_nodes,
            ids=message_ids(lent_nodes, borrowers),
        ),
        borrowed=Listing(
            lent=False,
            rows=torch.from_numpy(slots),
            mask_rows=torch.arange(len(slots)),
            counts=tuple(np.bincount(owners, minlength=part.ranks).tolist()),
            nodes=borrowed_nodes,
            ids=message_ids(borrowed_nodes, np.full(len(slots), part.rank)),
        ),
        num_halo=part.num_halo,
    )


def message_ids(nodes: NDArray[np.int64], borrowers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each (node, borrower), the same at both ends and in both directions."""
    rank_keys = np.array([mix64(0x1D, rank) for rank in range(int(borrowers.max(initial=0)) + 1)], np.uint64)
    return mix_array(nodes.astype(np.uint64) ^ rank_keys[borrowers])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A listing with a width and a place for every message; its arrays may stand in another order."""

    entries: int  # of a row that travel
    rows: Tensor  # [m]
    mask_rows: Tensor  # [m]
    bits: Tensor  # [m] uint8
    meta_place: Tensor  # [m] byte in the buffer; -1 where there is none
    code_place: Tensor  # [m]
    ids: Tensor  # [m] int64, the bits of the listing's
    nodes: NDArray[np.int64]  # [m]
    bytes_by_peer: tuple[int, ...]  # [N]
    group_first: Tensor | None  # [groups + 1] runs of messages with one row; None: every row once
    buffer: Tensor = field(repr=False)  # uint8, kept from epoch to epoch

    def __len__(self) -> int:
        return len(self.rows)


def make_layout(
    listing: Listing,
    bits: Bits,
    entries: int,
    sizes: Sizes,
    *,
    grouped: bool = False,
    new_buffer: NewBuffer = host_buffer,
) -> Layout:
    """Places for the messages of a listing.

    ``grouped`` sorts them by row, as adding several into one row in a fixed order needs it; otherwise the
    order is the listing's.
    """
    peers = np.repeat(np.arange(len(listing.counts)), listing.counts)
    meta_size, code_size = np.zeros(len(bits), np.int64), np.zeros(len(bits), np.int64)
    for width in np.unique(bits):
        meta_size[bits == width], code_size[bits == width] = sizes(entries, int(width))
    ranks = len(listing.counts)
    meta_by_peer = np.bincount(peers, meta_size, ranks).astype(np.int64)
    total_by_peer = meta_by_peer + np.bincount(peers, code_size, ranks).astype(np.int64)
    start = np.concatenate(([0], np.cumsum(total_by_peer)))
    order = np.lexsort((bits, peers))  # stable: within a width, the order of the listing
    meta_place, code_place = np.empty(len(bits), np.int64), np.empty(len(bits), np.int64)
    meta_place[order] = start[peers[order]] + _offsets(meta_size[order], listing.counts)
    code_place[order] = (start[:-1] + meta_by_peer)[peers[order]] + _offsets(code_size[order], listing.counts)
    meta_place[meta_size == 0] = -1
    rows, group_first = listing.rows.numpy(), None
    visit = np.arange(len(bits))
    if grouped:
        visit = np.argsort(rows, kind="stable")
        firsts = np.flatnonzero(np.diff(rows[visit], prepend=-1))
        group_first = torch.from_numpy(np.concatenate((firsts, [len(bits)])))

    def visited(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array[visit]))

    return Layout(
        entries=entries,
        rows=visited(rows),
        mask_rows=visited(listing.mask_rows.numpy()),
        bits=visited(bits),
        meta_place=visited(meta_place),
        code_place=visited(code_place),
        ids=visited(listing.ids.view(np.int64)),
        nodes=listing.nodes[visit],
        bytes_by_peer=tuple(total_by_peer.tolist()),
        group_first=group_first,
        buffer=new_buffer(int(start[-1])),
    )


def _offsets(sizes: NDArray[np.int64], counts: tuple[int, ...]) -> NDArray[np.int64]:
    """Bytes that stand before each message among those of its peer."""
    before = np.cumsum(sizes) - sizes
    firsts = np.cumsum((0, *counts))[:-1]
    present = np.array(counts) > 0
    base = np.zeros(len(counts), np.int64)
    base[present] = before[firsts[present]]
    offsets: NDArray[np.int64] = before - np.repeat(base, counts)
    return offsets
