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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit import native
from toolkit.comm.codec import Codec, NotFiniteError
from toolkit.comm.layout import Layout, Route
from toolkit.comm.ledger import Direction, Ledger, Phase
from toolkit.comm.position import begin_exchange
from toolkit.comm.transport import Arrived, Pending, Transport
from toolkit.errors import UserError
from toolkit.graph.part import Part
from toolkit.keyed import dropout_mask, kept_per_row, mask_key, mix64
from toolkit.plan import LayerStep


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
        halo_nodes = route.borrowed.nodes if step.kept_only else halo_nodes[:0]

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
    """Told max - min of every row that travels, when somebody wants it: [m], in the order of the listing."""

    def __call__(self, step: LayerStep, direction: Direction, ranges: Tensor) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Way:
    """One direction of one layer's exchange at one rank."""

    out: Layout
    into: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What the noise of a pass is keyed by."""

    seed: int
    epoch: int
    draw: int = 0  # another one: other noise under the same masks

    def key(self, phase: Phase, layer: int, direction: Direction) -> int:
        return mix64(self.seed, 0x0B, self.epoch, self.draw, phase == "evaluate", layer, direction == "backward")


class Crossing:
    """One layer's exchange in one pass, of rows after dropout. Call depart() once, then arrive() once.

    With ``masks`` and a kept-only step only the entries that the masks keep travel: their places are
    known at both ends, the rest is zero forward, and backward the owner would multiply it by zero.
    """

    def __init__(
        self,
        *,
        step: LayerStep,
        num_halo: int,
        ways: dict[Direction, Way],
        masks: Masks | None,
        transport: Transport,
        codec: Codec,
        noise: Noise,
        ledger: Ledger,
        phase: Phase,
        rank: int,
        overlap: bool = True,
        trace: RangeTrace | None = None,
    ) -> None:
        self._step, self._num_halo, self._ways, self._rank = step, num_halo, ways, rank
        self._transport, self._codec, self._noise = transport, codec, noise
        self._ledger, self._phase, self._overlap, self._trace = ledger, phase, overlap, trace
        kept = masks is not None and step.kept_only
        self._own_masks: Tensor | None = masks.inner if masks is not None and kept else None
        self._halo_masks: Tensor | None = masks.halo if masks is not None and kept else None
        self._pending: Pending | None = None
        self._dtype = torch.float32
        self._token = torch.empty(0)

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
        self._post(rows, self._own_masks, "forward")
        return rows.view_as(rows)

    def forward_arrive(self) -> Tensor:
        payload = self._wait("forward")
        with self._stage("decode", "forward"):
            layout = self._ways["forward"].into
            make = torch.empty if len(layout) == self._num_halo else torch.zeros  # decoding writes whole rows
            halo = make(self._num_halo, self._step.width, dtype=self._dtype)
            self._codec.decode(payload, self._halo_masks, layout, halo, add=False)
        return halo

    def backward_depart(self, halo_errors: Tensor) -> None:
        if self._step.backward:
            self._post(halo_errors, self._halo_masks, "backward")

    def backward_arrive(self, local_errors: Tensor) -> Tensor:
        if not self._step.backward:
            return local_errors
        payload, layout = self._wait("backward"), self._ways["backward"].into
        if len(layout) == 0:
            return local_errors
        with self._stage("decode", "backward"):
            errors = local_errors.clone(memory_format=torch.contiguous_format)
            self._codec.decode(payload, self._own_masks, layout, errors, add=True)
        return errors

    def _stage(self, name: str, direction: Direction) -> AbstractContextManager[None]:
        return self._ledger.stage(name, self._step.layer, direction)

    def _post(self, rows: Tensor, masks: Tensor | None, direction: Direction) -> None:
        step, way = self._step, self._ways[direction]
        self._ledger.count(self._phase, step.layer, direction, way.out.bytes_by_peer)
        begin_exchange(self._phase, step.layer, direction)
        ranges = None if self._trace is None else torch.zeros(len(way.out))
        with self._stage("encode", direction):
            try:
                key = self._noise.key(self._phase, step.layer, direction)
                payload = self._codec.encode(rows, masks, way.out, key, ranges)
            except NotFiniteError as error:
                when = f"epoch {self._noise.epoch + 1}" if self._phase == "train" else "evaluation"
                raise UserError(
                    f"{when}, layer {step.layer}, {direction}, at rank {self._rank}: {error}; "
                    "training diverged: lower train.lr or scale the features (data.feature_norm)"
                ) from None
        if self._trace is not None and ranges is not None:
            self._trace(step, direction, ranges)
        self._pending = self._transport.start(payload, way.out.bytes_by_peer, way.into.buffer, way.into.bytes_by_peer)
        if not self._overlap:
            with self._stage("wait", direction):
                self._pending = Arrived(self._pending.wait(), self._pending.flight_s())

    def _wait(self, direction: Direction) -> Tensor:
        assert self._pending is not None, "arrive() without depart()"
        with self._stage("wait", direction):
            payload = self._pending.wait()
        self._ledger.seconds["flight", self._step.layer, direction] += self._pending.flight_s()
        self._pending = None
        return payload


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
