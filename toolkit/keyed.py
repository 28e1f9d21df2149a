"""Randomness keyed by (seed, what, where), never by draw order.

The same node gets the same dropout mask at any number of ranks, at any speed, after a resume:
that is what makes N ranks equal one process, and what lets a receiver know, without being told,
which entries of a row its owner kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.keyed import mix64 as mix64
from simulator.keyed import mix_array as mix_array

U32 = NDArray[np.uint32]
BLOCK_ENTRIES = 1 << 16  # hash this many entries at a time: the temporaries stay in the L2 cache


def row_keys(key: int, rows: NDArray[np.int64] | NDArray[np.uint64]) -> tuple[U32, U32]:
    """Two 32-bit keys for each node or message id under ``key``."""
    state = mix_array(rows.astype(np.uint64) ^ np.uint64(key))
    return (state & np.uint64(0xFFFFFFFF)).astype(np.uint32), (state >> np.uint64(32)).astype(np.uint32)


def hash_rows(low: U32, high: U32, columns: int) -> U32:
    """A 32-bit hash of (row keys, column): [rows, columns]. Lowbias32 with a second key added midway."""
    x = (np.arange(columns, dtype=np.uint32) * np.uint32(0x9E3779B9))[None, :] ^ low[:, None]
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x += high[:, None]
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def kept_per_row(columns: int, dropout: float) -> int:
    """How many entries of a row of ``columns`` a mask keeps: at least one."""
    return max(1, round(columns * (1.0 - dropout)))


def mask_key(seed: int, epoch: int, layer: int) -> int:
    """The 64-bit key of one layer's dropout in one epoch."""
    return mix64(seed, 0xD0, epoch, layer)


def dropout_mask(
    seed: int, epoch: int, layer: int, nodes: NDArray[np.int64], columns: int, kept: int
) -> NDArray[np.bool_]:
    """Which entries survive: [len(nodes), columns] bool with exactly ``kept`` true in every row.

    Equal counts keep the rows of a channel equally long on the wire (kept-only rows). A row's
    mask is the set of the ``kept`` smallest of its hashes, the column number standing in the low
    bits so that no two are equal: every subset of that size is equally likely.
    """
    mask = np.empty((len(nodes), columns), dtype=np.bool_)
    if kept >= columns:
        mask.fill(True)
        return mask
    low, high = row_keys(mask_key(seed, epoch, layer), nodes)
    column_bits = np.uint32((1 << (columns - 1).bit_length()) - 1)
    ids = np.arange(columns, dtype=np.uint32)
    step = max(1, BLOCK_ENTRIES // columns)
    for begin in range(0, len(nodes), step):
        rows = slice(begin, begin + step)
        x = hash_rows(low[rows], high[rows], columns)
        x &= ~column_bits
        x |= ids
        threshold = np.partition(x, kept - 1, axis=1)[:, kept - 1 : kept]
        np.less_equal(x, threshold, out=mask[rows])
    return mask
