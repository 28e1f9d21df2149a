"""keyed.dropout_mask in torch's int64 arithmetic: the same bits, wherever the node ids lie."""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.keyed import mask_key

LOW = 0xFFFFFFFF
BLOCK_ENTRIES = 1 << 23  # hashed at a time: 64 MB a temporary


def dropout_mask(seed: int, epoch: int, layer: int, nodes_M: Tensor, columns: int, kept: int) -> Tensor:
    """Which entries survive: [m, columns] bool, on the device of ``nodes``, exactly ``kept`` true in every row."""
    mask = torch.empty(len(nodes_M), columns, dtype=torch.bool, device=nodes_M.device)
    if kept >= columns:
        return mask.fill_(True)
    state = _mix(nodes_M ^ _signed(mask_key(seed, epoch, layer)))
    low, high = (state & LOW)[:, None], _shift(state, 32)[:, None]
    ids = torch.arange(columns, device=nodes_M.device)
    column_bits = (1 << (columns - 1).bit_length()) - 1
    step = max(1, BLOCK_ENTRIES // columns)
    for begin in range(0, len(nodes_M), step):
        rows = slice(begin, begin + step)
        x = _hash(low[rows], high[rows], ids) & ~column_bits | ids
        ordered = (x - (1 << 31)).int()  # half the bits for the selection to look at, in the same order
        mask[rows] = ordered <= ordered.kthvalue(kept, dim=1, keepdim=True).values
    return mask


def _hash(low: Tensor, high: Tensor, columns: Tensor) -> Tensor:
    """keyed.hash_rows: 32-bit numbers in int64. Products wrap modulo 2^64, and their lower 32 bits are right."""
    x = (columns * 0x9E3779B9 & LOW) ^ low
    x = (x ^ x >> 16) * 0x7FEB352D + high & LOW
    x = (x ^ x >> 15) * 0x846CA68B & LOW
    return x ^ x >> 16


def _mix(words: Tensor) -> Tensor:
    """simulator.keyed.mix_array: 64-bit numbers as int64."""
    state = words + _signed(0x9E3779B97F4A7C15)
    state = (state ^ _shift(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shift(state, 31)


def _shift(words: Tensor, places: int) -> Tensor:
    """To the right, zeros coming in."""
    return words >> places & (1 << 64 - places) - 1


def _signed(number: int) -> int:
    """The int64 of the same 64 bits."""
    return number - (1 << 64) if number >> 63 else number
