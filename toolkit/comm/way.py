"""One direction of one layer's exchange at one rank: rows into messages, messages into rows.

A way joins a codec to a transport over two layouts. ``HostWay`` does so for rows in the host's memory,
``DeviceWay`` for rows on a GPU: the device quantises on its side stream into pinned memory of the host, MPI
moves that (or the device's own memory, where MPI can), and the compute stream waits when the rows are wanted.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from toolkit import native
from toolkit.comm.codec import Codec, NotFiniteError, Plain, gather, place
from toolkit.comm.device import Device, Event
from toolkit.comm.layout import Layout
from toolkit.comm.transport import Pending, Transport

Stage = AbstractContextManager[None]  # entered where the work is: its seconds are booked


class Way(Protocol):
    """Call post(), wait for what it gives, then check() and new_rows() or add_rows(); one exchange at a time."""

    @property
    def out(self) -> Layout: ...

    @property
    def into(self) -> Layout: ...

    def new_ranges(self) -> Tensor:
        """Room for max - min of every message: [m], on the host."""
        ...

    def post(self, rows_XD: Tensor, masks: Tensor | None, key: int, ranges: Tensor | None, stage: Stage) -> Pending:
        """Start the exchange; ``ranges`` are there once it has been waited for. NotFiniteError: now or then."""
        ...

    def check(self) -> None:
        """Raise NotFiniteError for a row that could not be quantised and has not been told yet."""
        ...

    def new_rows(
        self, payload: Tensor, masks: Tensor | None, count: int, width: int, dtype: torch.dtype, stage: Stage
    ) -> Tensor:
        """The rows that have come, among ``count`` of which the others are zero: [count, width]."""
        ...

    def add_rows(self, payload: Tensor, masks: Tensor | None, rows_XD: Tensor, stage: Stage) -> Tensor:
        """``rows`` with those that have come added to them, in new memory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostWay:
    """Rows in the host's memory."""

    out: Layout
    into: Layout
    codec: Codec
    transport: Transport

    def new_ranges(self) -> Tensor:
        return torch.zeros(len(self.out))

    def post(self, rows_XD: Tensor, masks: Tensor | None, key: int, ranges: Tensor | None, stage: Stage) -> Pending:
        with stage:
            payload = self.codec.encode(rows_XD, masks, self.out, key, ranges)
        return self.transport.start(payload, self.out.bytes_by_peer, self.into.buffer, self.into.bytes_by_peer)

    def check(self) -> None:
        pass  # encode has

    def new_rows(
        self, payload: Tensor, masks: Tensor | None, count: int, width: int, dtype: torch.dtype, stage: Stage
    ) -> Tensor:
        with stage:
            make = torch.empty if len(self.into) == count else torch.zeros  # decoding writes whole rows
            rows = make(count, width, dtype=dtype)
            self.codec.decode(payload, masks, self.into, rows, add=False)
        return rows

    def add_rows(self, payload: Tensor, masks: Tensor | None, rows_XD: Tensor, stage: Stage) -> Tensor:
        with stage:
            rows = rows_XD.clone(memory_format=torch.contiguous_format)
            self.codec.decode(payload, masks, self.into, rows, add=True)
        return rows


class DeviceWay:
    """Rows on a GPU. ``out`` and ``into`` are the layouts on the host, their buffers pinned."""

    def __init__(self, out: Layout, into: Layout, codec: Codec, transport: Transport, device: Device) -> None:
        self.out, self.into = out, into
        self._codec, self._transport, self._device = codec, transport, device
        self._lent, self._taken = on_device(out, device), on_device(into, device)
        self._bad = torch.full((1,), -1, dtype=torch.int64, device=device.at)
        self._told_bad = device.pinned(1, torch.int64).fill_(-1)
        self._sent: Event | None = None
        # what MPI reads and writes
        direct = device.kernels is not None and transport.takes_device_memory
        self._wire = self._lent.buffer if direct else out.buffer
        self._landing = self._taken.buffer if direct else into.buffer

    def new_ranges(self) -> Tensor:
        return self._device.pinned(len(self.out), torch.float32).zero_()

    def post(self, rows_XD: Tensor, masks: Tensor | None, key: int, ranges: Tensor | None, stage: Stage) -> Pending:
        rows, device = rows_XD.detach().contiguous(), self._device

        def encode() -> None:
            with stage:
                payload = self._encode(rows, masks, key, ranges)
            if payload is not self._wire:
                self._wire.copy_(payload, non_blocking=True)

        device.fence()
        device.submit(encode, rows, *_there(masks))
        self._sent = device.mark()
        return self._transport.start(
            self._wire, self.out.bytes_by_peer, self._landing, self.into.bytes_by_peer, self._sent.synchronize
        )

    def check(self) -> None:
        assert self._sent is not None, "check() without post()"
        self._sent.synchronize()
        bad = int(self._told_bad[0])
        if bad >= 0:
            raise NotFiniteError(int(self.out.nodes[bad]))

    def new_rows(
        self, payload: Tensor, masks: Tensor | None, count: int, width: int, dtype: torch.dtype, stage: Stage
    ) -> Tensor:
        rows = self._device.new_rows(count, width, dtype, zero=len(self.into) != count)
        self._decode(payload, masks, rows, stage, add=False)
        return rows

    def add_rows(self, payload: Tensor, masks: Tensor | None, rows_XD: Tensor, stage: Stage) -> Tensor:
        rows = rows_XD.clone(memory_format=torch.contiguous_format)
        self._device.fence()
        self._decode(payload, masks, rows, stage, add=True)
        return rows

    def _encode(self, rows: Tensor, masks: Tensor | None, key: int, ranges: Tensor | None) -> Tensor:
        """The payload: in the lent buffer on the device, in other memory of it, or in the host's."""
        layout, kernels = self._lent, self._device.kernels
        if len(layout) == 0:
            return self._wire
        if kernels is not None and self._kernels_take(rows):
            found = None if ranges is None else torch.empty(len(layout), device=self._device.at)
            self._bad.fill_(-1)
            kernels(
                "quantise_f32", len(layout), rows.shape[1], layout.entries, rows, layout.rows, masks,
                None if masks is None else layout.mask_rows, layout.bits, layout.meta_place, layout.code_place,
                layout.ids, ctypes.c_uint64(key), layout.buffer, found, self._bad,
            )  # fmt: skip
            self._told_bad.copy_(self._bad, non_blocking=True)
            if ranges is not None and found is not None:
                ranges.copy_(found, non_blocking=True)
            return layout.buffer
        if isinstance(self._codec, Plain):
            return self._codec.encode(rows, masks, layout, key, ranges)
        wire = gather(rows, masks, layout).float().cpu()
        return self._codec.encode(wire, None, listed(self.out), key, ranges)

    def _decode(self, payload: Tensor, masks: Tensor | None, rows: Tensor, stage: Stage, *, add: bool) -> None:
        layout, kernels, at = self._taken, self._device.kernels, self._device.at

        def decode() -> None:
            if len(layout) == 0:
                return
            if kernels is not None and self._kernels_take(rows):
                if payload is not layout.buffer:
                    layout.buffer.copy_(payload, non_blocking=True)
                groups = len(layout) if layout.group_first is None else len(layout.group_first) - 1
                with stage:
                    kernels(
                        "dequantise_f32", len(layout), rows.shape[1], layout.entries, layout.buffer, layout.rows,
                        masks, None if masks is None else layout.mask_rows, layout.bits, layout.meta_place,
                        layout.code_place, groups, layout.group_first, ctypes.c_int(add), rows,
                    )  # fmt: skip
            elif isinstance(self._codec, Plain):
                there = payload.to(at, non_blocking=True)
                with stage:
                    self._codec.decode(there, masks, layout, rows, add=add)
            else:
                with stage:
                    wire = torch.empty(len(layout), layout.entries)
                    self._codec.decode(payload.cpu(), None, listed(self.into), wire, add=False)
                    place(wire.to(at).to(rows.dtype), masks, layout, rows, add=add)

        self._device.submit(decode, rows, *_there(masks))
        self._device.join(self._device.mark())

    def _kernels_take(self, rows: Tensor) -> bool:
        """The kernels' rows are float32; a plain codec's of that type are messages of 32 bits."""
        known = not isinstance(self._codec, Plain) or self._codec.dtype == torch.float32
        return known and rows.dtype == torch.float32 and rows.shape[1] <= native.WIDEST_ROW


def on_device(layout: Layout, device: Device) -> Layout:
    """The same layout with its arrays on the device; its buffer too, where the device's kernels write it."""

    def moved(array: Tensor) -> Tensor:
        return array.to(device.at, copy=True)

    return replace(
        layout,
        rows=moved(layout.rows),
        mask_rows=moved(layout.mask_rows),
        bits=moved(layout.bits),
        meta_place=moved(layout.meta_place),
        code_place=moved(layout.code_place),
        ids=moved(layout.ids),
        group_first=None if layout.group_first is None else moved(layout.group_first),
        buffer=layout.buffer if device.kernels is None else torch.empty_like(layout.buffer, device=device.at),
    )


def listed(layout: Layout) -> Layout:
    """The same messages, read from or written to a matrix of nothing but them."""
    numbers = torch.arange(len(layout))
    return replace(layout, rows=numbers, mask_rows=numbers, group_first=None)


def _there(masks: Tensor | None) -> tuple[Tensor, ...]:
    return () if masks is None else (masks,)
