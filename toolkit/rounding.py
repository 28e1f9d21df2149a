"""Stochastic rounding of rows to b bits, in plain numpy: the reference of cuda/rounding.h, bit for bit.

Used where the kernels are not built, and to test them. With L = 2^b - 1 (AdaQP, eqs. 3-4):

    Z = the largest bfloat16 <= min          S = the least bfloat16 with Z + S L >= max
    q = floor((h - Z) / S + u), u uniform    h^ = q S + Z,  E[h^] = h,  Var[h^] <= S^2 / 4 an entry

Z and S are rounded before quantising: rounded after it, h^ would be biased. Arrays: K messages, e entries.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from toolkit.keyed import hash_rows, row_keys

F32: TypeAlias = NDArray[np.float32]
U32: TypeAlias = NDArray[np.uint32]
U8: TypeAlias = NDArray[np.uint8]

WIDTHS = (1, 2, 4, 8)  # bits; 32 stands for the float itself
DRAWN_FROM = (2, 4, 8)  # where widths are drawn (AdaQP, section 5.4)
META_BYTES = 4
HUGE = np.float32(2.0**100)  # scales from here on are computed at SHRINK of their size: max - min would overflow
SHRINK = np.float32(2.0**-8)
SMALLEST_SCALE = np.float32(2.0**-126)
CONSTANT = np.uint32(0x8000)  # the sign of S


def code_bytes(entries: int, bits: int) -> int:
    """Bytes of a row's codes."""
    return 4 * entries if bits == 32 else (entries * bits + 7) // 8


def message_bytes(entries: int, bits: int) -> int:
    """Bytes of a message: its codes and, below 32 bits, 4 of metadata."""
    return code_bytes(entries, bits) + (0 if bits == 32 else META_BYTES)


def quantise(rows_KE: F32, bits: int, where_K: NDArray[np.uint64], key: int) -> tuple[U32, U8]:
    """(metadata [K], codes [K, ceil(e b / 8)]) of finite rows at one width. ``where`` and ``key``: their noise."""
    rows = np.ascontiguousarray(rows_KE, np.float32)
    levels = np.float32(2**bits - 1)
    low, high = rows.min(1) + np.float32(0), rows.max(1) + np.float32(0)
    constant = low == high
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        zero_bits = _bf16_below(low)
        zero_bits[zero_bits == 0xFF80] = 0xFF7F
        zero = _bf16(zero_bits)
        shrink = np.where(high - zero < np.float32(2.0**127), np.float32(1), SHRINK)
        span = high * shrink - zero * shrink
        step_bits = _bf16_above(np.maximum(span / levels, SMALLEST_SCALE) / shrink)
        step_bits += (_bf16(step_bits) * shrink * levels < span).astype(np.uint32)
        step_bits = np.minimum(step_bits, np.uint32(0x7F7F))
        step = _bf16(step_bits)
        shrink = np.where(step >= HUGE, SHRINK, np.float32(1))
        inverse = np.float32(1) / (step * shrink)
        y = (rows * shrink[:, None] - (zero * shrink)[:, None]) * inverse[:, None]
        y[constant] = 0
        y = np.where(y < levels, y, levels)
        whole = y.astype(np.int32)
        random = hash_rows(*row_keys(key, where_K), rows.shape[1])
        uniform = (random >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        q = (whole + (uniform < y - whole.astype(np.float32))).astype(np.uint8)
    codes = _pack(q, bits)
    value = low.view(np.uint32)
    as_constant = value >> 16 | (CONSTANT | (value & 0xFFFF) >> 1) << 16
    codes[constant] = 0
    codes[constant, 0] = (value[constant] & 1).astype(np.uint8)
    return np.where(constant, as_constant, zero_bits | step_bits << 16).astype(np.uint32), codes


def dequantise(meta_K: U32, codes_KB: U8, entries: int, bits: int) -> F32:
    """Rows [K, e] from metadata and codes."""
    upper: U32 = meta_K >> np.uint32(16)
    constant = (upper & CONSTANT) != 0
    last = (codes_KB[:, 0] & 1).astype(np.uint32)
    exact = _float(((meta_K & 0xFFFF) << 16 | (upper & 0x7FFF) << 1 | last).astype(np.uint32))
    step, zero = _bf16(upper), _bf16(meta_K)
    shrink = np.where(step >= HUGE, SHRINK, np.float32(1))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        q = _unpack(codes_KB, entries, bits).astype(np.float32)
        rows = (q * (step * shrink)[:, None] + (zero * shrink)[:, None]) / shrink[:, None]
    rows = np.minimum(rows, np.finfo(np.float32).max)
    return np.where(constant[:, None], exact[:, None], rows)


def _pack(codes_KE: U8, bits: int) -> U8:
    """Planar: byte k of B holds columns k, k + B, k + 2B, ..., the first in its lowest bits."""
    planes, size = 8 // bits, code_bytes(codes_KE.shape[1], bits)
    padded = np.zeros((len(codes_KE), planes * size), np.uint8)
    padded[:, : codes_KE.shape[1]] = codes_KE
    shifts = (np.arange(planes, dtype=np.uint8) * bits)[None, :, None]
    packed: U8 = np.bitwise_or.reduce(padded.reshape(-1, planes, size) << shifts, axis=1)
    return packed


def _unpack(codes_KB: U8, entries: int, bits: int) -> U8:
    shifts = (np.arange(8 // bits, dtype=np.uint8) * bits)[None, :, None]
    planes = (codes_KB[:, None, :] >> shifts) & np.uint8(2**bits - 1)
    unpacked: U8 = planes.reshape(len(codes_KB), -1)[:, :entries]
    return unpacked


def _float(bits: U32) -> F32:
    return bits.astype(np.uint32).view(np.float32)


def _bf16(upper: U32) -> F32:
    """The bfloat16 in the lower 16 bits, as float32."""
    return _float(upper << np.uint32(16))


def _bf16_below(values: F32) -> U32:
    bits: U32 = values.view(np.uint32)
    below: U32 = (bits >> 16) + ((bits >> 31) & ((bits & 0xFFFF) != 0))
    return below


def _bf16_above(values: F32) -> U32:
    bits: U32 = values.astype(np.float32).view(np.uint32)
    above: U32 = (bits >> 16) + ((bits & 0xFFFF) != 0)
    return above
