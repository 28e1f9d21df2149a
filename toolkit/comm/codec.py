"""How rows are written on the wire. A codec knows its exact byte count beforehand.

Encoding reads rows from a matrix and writes messages into a layout's buffer; decoding writes them into
rows of another matrix, or adds them. Where masks are given, only the entries that they keep travel, and
the rest of a written row is zero.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit import native, rounding
from toolkit.comm.layout import Layout

UNQUANTISED = 32  # the width that stands for a row as it is
NOT_FINITE = 2  # status of the kernel


class NotFiniteError(Exception):
    """A row that is to be quantised holds a NaN or an infinity, and so has no range."""

    def __init__(self, node: int) -> None:
        super().__init__(f"the row of node {node} holds a NaN or an infinity")
        self.node = node


class Codec(Protocol):
    """Rows into a buffer, and back."""

    @property
    def name(self) -> str: ...

    def sizes(self, entries: int, bits: int) -> tuple[int, int]:
        """Bytes of a message's metadata and of its codes."""
        ...

    def encode(self, rows_XD: Tensor, masks: Tensor | None, layout: Layout, key: int, ranges: Tensor | None) -> Tensor:
        """The payload, uint8. ``ranges`` [m] takes max - min of every message. ``key``: the noise."""
        ...

    def decode(self, payload: Tensor, masks: Tensor | None, layout: Layout, out_XD: Tensor, *, add: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Plain:
    """Each entry in one floating-point type, no metadata: float32, bfloat16 (or float64, to verify)."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def sizes(self, entries: int, bits: int) -> tuple[int, int]:
        return 0, entries * self.dtype.itemsize

    def encode(self, rows_XD: Tensor, masks: Tensor | None, layout: Layout, key: int, ranges: Tensor | None) -> Tensor:
        if self.dtype == torch.float32 and _kernel_takes(rows_XD):
            return _kernel_encode(rows_XD, masks, layout, key, ranges)
        wire = gather(rows_XD, masks, layout)
        if ranges is not None and len(wire):
            ranges.copy_(wire.amax(1) - wire.amin(1))
        return wire.to(self.dtype).contiguous().view(-1).view(torch.uint8)

    def decode(self, payload: Tensor, masks: Tensor | None, layout: Layout, out_XD: Tensor, *, add: bool) -> None:
        if self.dtype == torch.float32 and _kernel_takes(out_XD):
            _kernel_decode(payload, masks, layout, out_XD, add=add)
            return
        wire = payload.view(self.dtype).view(-1, layout.entries)
        if layout.group_first is not None:  # visited by row: the buffer stands in the listing's order
            wire = wire[torch.div(layout.code_place, layout.entries * self.dtype.itemsize, rounding_mode="floor")]
        place(wire.to(out_XD.dtype), masks, layout, out_XD, add=add)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Stochastically rounded rows of 1, 2, 4 or 8 bits an entry, by message; 32: as they are (AdaQP, section 4)."""

    name: str = "quantised"

    def sizes(self, entries: int, bits: int) -> tuple[int, int]:
        return 0 if bits == UNQUANTISED else rounding.META_BYTES, rounding.code_bytes(entries, bits)

    def encode(self, rows_XD: Tensor, masks: Tensor | None, layout: Layout, key: int, ranges: Tensor | None) -> Tensor:
        if _kernel_takes(rows_XD):
            return _kernel_encode(rows_XD, masks, layout, key, ranges)
        wire = gather(rows_XD, masks, layout).float().numpy()
        if ranges is not None and len(wire):
            ranges.copy_(torch.from_numpy(wire.max(1) - wire.min(1)))
        bits, buffer = layout.bits.numpy(), layout.buffer.numpy()
        bad = np.flatnonzero(~np.isfinite(wire).all(1) & (bits != UNQUANTISED))
        if len(bad):
            raise NotFiniteError(int(layout.nodes[bad[0]]))
        for width in np.unique(bits).tolist():
            chosen = np.flatnonzero(bits == width)
            codes = wire[chosen].view(np.uint8)
            if width != UNQUANTISED:
                ids = layout.ids.numpy()[chosen].view(np.uint64)
                meta, codes = rounding.quantise(wire[chosen], width, ids, key)
                buffer[_spread(layout.meta_place, chosen, rounding.META_BYTES)] = meta[:, None].view(np.uint8)
            buffer[_spread(layout.code_place, chosen, codes.shape[1])] = codes
        return layout.buffer

    def decode(self, payload: Tensor, masks: Tensor | None, layout: Layout, out_XD: Tensor, *, add: bool) -> None:
        if _kernel_takes(out_XD):
            _kernel_decode(payload, masks, layout, out_XD, add=add)
            return
        bits, buffer = layout.bits.numpy(), payload.numpy()
        wire = np.empty((len(layout), layout.entries), np.float32)
        for width in np.unique(bits).tolist():
            chosen = np.flatnonzero(bits == width)
            codes = buffer[_spread(layout.code_place, chosen, rounding.code_bytes(layout.entries, width))]
            if width == UNQUANTISED:
                wire[chosen] = codes.view(np.float32)
            else:
                meta = buffer[_spread(layout.meta_place, chosen, rounding.META_BYTES)].view(np.uint32)[:, 0]
                wire[chosen] = rounding.dequantise(meta, codes, layout.entries, width)
        place(torch.from_numpy(wire).to(out_XD.dtype), masks, layout, out_XD, add=add)


def _spread(places: Tensor, chosen: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Byte numbers [k, size] of the chosen messages."""
    spread: NDArray[np.int64] = places.numpy()[chosen][:, None] + np.arange(size)
    return spread


def gather(rows_XD: Tensor, masks: Tensor | None, layout: Layout) -> Tensor:
    """The messages of a layout as a matrix: [m, entries]."""
    wire = rows_XD.index_select(0, layout.rows)
    return wire if masks is None else wire.gather(1, kept_columns(masks, layout))


def place(wire_ME: Tensor, masks: Tensor | None, layout: Layout, out_XD: Tensor, *, add: bool) -> None:
    """Write, or add, the messages of a layout to the rows that they go to."""
    if masks is not None:
        whole = wire_ME.new_zeros(len(wire_ME), out_XD.shape[1])
        wire_ME = whole.scatter_(1, kept_columns(masks, layout), wire_ME)
    if add:
        out_XD.index_add_(0, layout.rows, wire_ME)
    else:
        out_XD[layout.rows] = wire_ME


def kept_columns(masks: Tensor, layout: Layout) -> Tensor:
    """Column numbers of the kept entries of each message: [m, entries]."""
    chosen = masks.index_select(0, layout.mask_rows)
    on_host = chosen.device.type == "cpu"
    return columns_on_host(chosen, layout.entries) if on_host else columns_on_device(chosen, layout.entries)


def columns_on_host(chosen_MD: Tensor, entries: int) -> Tensor:
    """Column numbers of the true entries, ``entries`` in every row: [m, entries]."""
    chosen = chosen_MD.numpy()
    # twelve times faster than a nonzero of two columns
    places = np.flatnonzero(chosen).reshape(len(chosen), entries)
    return torch.from_numpy(places - chosen.shape[1] * np.arange(len(chosen))[:, None])


def columns_on_device(chosen_MD: Tensor, entries: int) -> Tensor:
    """The same without a nonzero, for whose size the host would wait."""
    m, width = chosen_MD.shape
    places = torch.where(chosen_MD, chosen_MD.cumsum(1) - 1, entries)  # the others into a column that is cut off
    columns = torch.arange(width, device=chosen_MD.device).expand(m, width)
    return places.new_empty(m, entries + 1).scatter_(1, places, columns)[:, :entries]


def _kernel_takes(rows_XD: Tensor) -> bool:
    return native.available(rows_XD) and rows_XD.shape[1] <= native.WIDEST_ROW


def _kernel_encode(rows: Tensor, masks: Tensor | None, layout: Layout, key: int, ranges: Tensor | None) -> Tensor:
    bad, rows = ctypes.c_int64(-1), rows.contiguous()
    status = native.status(
        "quantise_f32", len(layout), rows.shape[1], layout.entries, rows, layout.rows, masks,
        None if masks is None else layout.mask_rows, layout.bits, layout.meta_place, layout.code_place, layout.ids,
        ctypes.c_uint64(key), layout.buffer, ranges, ctypes.byref(bad), native.threads(),
    )  # fmt: skip
    if status == NOT_FINITE:
        raise NotFiniteError(int(layout.nodes[bad.value]))
    native.check("quantise_f32", status)
    return layout.buffer


def _kernel_decode(payload: Tensor, masks: Tensor | None, layout: Layout, out: Tensor, *, add: bool) -> None:
    groups = len(layout) if layout.group_first is None else len(layout.group_first) - 1
    native.call(
        "dequantise_f32", len(layout), out.shape[1], layout.entries, payload, layout.rows, masks,
        None if masks is None else layout.mask_rows, layout.bits, layout.meta_place, layout.code_place, groups,
        layout.group_first, ctypes.c_int(add), out, native.threads(),
    )  # fmt: skip


def exact(dtype: torch.dtype) -> Plain:
    """The codec that loses nothing of ``dtype``."""
    return Plain(dtype)


def make(name: str, dtype: torch.dtype) -> Codec:
    """The codec of a configuration. In float64 arithmetic, float32 means "as it is"."""
    if name == "quantised":
        return Quantised()
    return Plain(torch.bfloat16) if name == "bfloat16" else exact(dtype)
