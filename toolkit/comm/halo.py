"""The exchange of halo rows, as autograd sees it.

One layer's crossing is cut in two so that the product over local rows runs while messages travel:

    forward     depart(x) -> local rows ............ arrive() -> halo rows
                  | gather, encode, post              | wait, decode, place
                  +-- caller multiplies local rows ---+

    backward    arrive's: gather, encode, post the halo rows' errors
                  +-- autograd multiplies local rows -+
                depart's: wait, decode, add to the owner's rows

Autograd runs later-made nodes first, so backward is the mirror image of forward by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit import native
from toolkit.comm.codec import Codec
from toolkit.comm.ledger import Direction, Ledger, Phase
from toolkit.comm.position import begin_exchange
from toolkit.comm.transport import Pending, Transport
from toolkit.graph.part import Part
from toolkit.keyed import dropout_mask, kept_per_row, mask_key
from toolkit.plan import LayerStep, travelling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """Which rows one rank sends and receives in one layer step."""

    send_rows: Tensor  # [m'] local numbers of inner nodes, by receiver
    send_counts: tuple[int, ...]  # [N] rows to each receiver
    halo_slots: Tensor  # [h'] which halo rows arrive, by sender
    receive_counts: tuple[int, ...]  # [N] rows from each sender
    num_halo: int


def make_route(part: Part, step: LayerStep) -> Route:
    """The rows of ``part`` that travel in ``step``."""
    sends, receives = travelling(part.send_reach, step), travelling(part.halo_reach, step)
    ranks = np.arange(part.ranks)
    receivers, senders = np.repeat(ranks, part.send_counts), np.repeat(ranks, part.halo_counts)
    return Route(
        send_rows=torch.from_numpy(part.send_rows[sends]),
        send_counts=tuple(np.bincount(receivers[sends], minlength=part.ranks).tolist()),
        halo_slots=torch.from_numpy(np.flatnonzero(receives)),
        receive_counts=tuple(np.bincount(senders[receives], minlength=part.ranks).tolist()),
        num_halo=part.num_halo,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Masks:
    """The dropout of one layer in one epoch, at one rank: keyed by node, so every rank agrees."""

    inner: Tensor  # [n, D] bool
    halo: Tensor  # [h', D] bool: the halo rows that arrive, or that are held
    scale: float

    def drop(self, rows: Tensor) -> Tensor:
        """Inner rows after dropout."""
        dropped: Tensor = _Drop.apply(rows, self.inner, self.scale)  # type: ignore[no-untyped-call]
        return dropped


def make_masks(part: Part, step: LayerStep, route: Route, width: int, seed: int, epoch: int) -> Masks | None:
    """Masks for input rows of ``width`` entries, or None where the step drops nothing.

    A rank needs its halo nodes' masks only where it holds their rows or gets their kept entries.
    """
    kept = kept_per_row(width, step.dropout)
    if step.dropout == 0 or kept == width:
        return None
    halo_nodes = part.halo_nodes
    if step.sends != "nothing":
        halo_nodes = halo_nodes[route.halo_slots.numpy()] if step.kept_only else halo_nodes[:0]

    def mask(nodes: NDArray[np.int64]) -> Tensor:
        return keyed_mask(seed, epoch, step.layer, nodes, width, kept)

    return Masks(inner=mask(part.nodes), halo=mask(halo_nodes), scale=width / kept)


def keyed_mask(seed: int, epoch: int, layer: int, nodes: NDArray[np.int64], width: int, kept: int) -> Tensor:
    """keyed.dropout_mask as a tensor, by the kernel where it is there: the same bits."""
    if native.library() is None or width > native.WIDEST_MASK:
        return torch.from_numpy(dropout_mask(seed, epoch, layer, nodes, width, kept))
    mask = torch.empty(len(nodes), width, dtype=torch.bool)
    key = ctypes.c_uint64(mask_key(seed, epoch, layer))
    native.call("dropout_mask", len(nodes), width, kept, torch.from_numpy(nodes), key, mask, native.threads())
    return mask


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.mask, ctx.scale = mask, scale
        return rows * mask * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0] * ctx.mask * ctx.scale, None, None


class RangeTrace(Protocol):
    """Told the rows that travel, when somebody wants their ranges (the workload recorder)."""

    def __call__(self, step: LayerStep, backward: bool, rows: Tensor) -> None: ...


class Crossing:
    """One layer's exchange in one pass, of rows after dropout. Call depart() once, then arrive() once.

    With ``masks`` and a kept-only step only the entries that the masks keep travel: their places are
    known at both ends, the rest is zero forward, and backward the owner would multiply it by zero.
    """

    def __init__(
        self,
        *,
        step: LayerStep,
        route: Route,
        masks: Masks | None,
        transport: Transport,
        codec: Codec,
        ledger: Ledger,
        phase: Phase,
        trace: RangeTrace | None = None,
    ) -> None:
        self._step, self._route = step, route
        self._transport, self._codec, self._ledger, self._phase = transport, codec, ledger, phase
        self._trace = trace
        self._pending: Pending | None = None
        self._dtype = torch.float32
        self._token = torch.empty(0)
        self._send_columns: Tensor | None = None
        self._halo_columns: Tensor | None = None
        if masks is not None and step.kept_only:
            with ledger.stage("masks", step.layer):
                self._send_columns = _kept_columns(masks.inner[route.send_rows], step.entries)
                self._halo_columns = _kept_columns(masks.halo, step.entries)

    def depart(self, rows: Tensor) -> Tensor:
        """Post the rows that others need; give this rank's own back. [n, D] -> [n, D]."""
        self._dtype = rows.dtype
        local: Tensor
        local, self._token = _Depart.apply(rows, self)  # type: ignore[no-untyped-call]
        return local

    def arrive(self) -> Tensor:
        """Wait for the halo rows: [h, D]; rows that stay at home are zero."""
        token, self._token = self._token, torch.empty(0)  # kept, it would close a reference cycle
        halo: Tensor = _Arrive.apply(token, self)  # type: ignore[no-untyped-call]
        return halo

    # What the two autograd nodes do, in the order of the picture above.

    def forward_depart(self, rows: Tensor) -> Tensor:
        route = self._route
        with self._stage("encode"):
            wire = rows.index_select(0, route.send_rows)
            if self._send_columns is not None:
                wire = wire.gather(1, self._send_columns)
        self._post(wire, route.send_counts, route.receive_counts, backward=False)
        return rows.view_as(rows)

    def forward_arrive(self) -> Tensor:
        route, step = self._route, self._step
        wire = self._collect(step.entries)
        with self._stage("decode"):
            halo = torch.zeros(route.num_halo, step.width, dtype=self._dtype)
            if self._halo_columns is not None:
                wire = torch.zeros(len(wire), step.width, dtype=self._dtype).scatter_(1, self._halo_columns, wire)
            halo[route.halo_slots] = wire
        return halo

    def backward_depart(self, halo_errors: Tensor) -> None:
        if not self._step.backward:
            return
        with self._stage("encode", backward=True):
            wire = halo_errors.index_select(0, self._route.halo_slots)
            if self._halo_columns is not None:
                wire = wire.gather(1, self._halo_columns)
        self._post(wire, self._route.receive_counts, self._route.send_counts, backward=True)

    def backward_arrive(self, local_errors: Tensor) -> Tensor:
        errors = local_errors
        if self._step.backward:
            wire = self._collect(self._step.entries, backward=True)
            with self._stage("decode", backward=True):
                if self._send_columns is not None:
                    wire = torch.zeros(len(wire), self._step.width, dtype=wire.dtype).scatter_(
                        1, self._send_columns, wire
                    )
                errors = errors.index_add(0, self._route.send_rows, wire)
        return errors

    def _stage(self, name: str, *, backward: bool = False) -> AbstractContextManager[None]:
        return self._ledger.stage(name, self._step.layer, _direction(backward))

    def _post(self, wire: Tensor, counts: Sequence[int], back: Sequence[int], *, backward: bool) -> None:
        row_bytes = self._codec.row_bytes(self._step.entries)
        bytes_to, bytes_from = [c * row_bytes for c in counts], [c * row_bytes for c in back]
        self._ledger.count(self._phase, self._step.layer, _direction(backward), bytes_to)
        begin_exchange(self._phase, self._step.layer, _direction(backward))
        if self._trace is not None:
            self._trace(self._step, backward, wire)
        with self._stage("encode", backward=backward):
            payload = self._codec.encode(wire)
        self._pending = self._transport.start(payload, bytes_to, bytes_from)

    def _collect(self, entries: int, *, backward: bool = False) -> Tensor:
        assert self._pending is not None, "arrive() without depart()"
        with self._stage("wait", backward=backward):
            payload = self._pending.wait()
        self._ledger.seconds["flight", self._step.layer, _direction(backward)] += self._pending.flight_s()
        self._pending = None
        with self._stage("decode", backward=backward):
            return self._codec.decode(payload, entries, self._dtype)


def _kept_columns(masks: Tensor, kept: int) -> Tensor:
    """Column numbers of the kept entries of each row: [rows, kept]."""
    rows, columns = masks.shape
    places = np.flatnonzero(masks.numpy()).reshape(rows, kept)  # twelve times faster than a nonzero of two columns
    return torch.from_numpy(places - columns * np.arange(rows)[:, None])


def _direction(backward: bool) -> Direction:
    return "backward" if backward else "forward"


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, crossing: Crossing) -> tuple[Tensor, Tensor]:
        ctx.crossing = crossing
        return crossing.forward_depart(rows), rows.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.crossing.backward_arrive(grads[0]), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, crossing: Crossing) -> Tensor:
        ctx.crossing = crossing
        return crossing.forward_arrive()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.crossing.backward_depart(grads[0])
        return grads[0].new_zeros(()), None
