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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit import native
from toolkit.comm import device_mask
from toolkit.comm.codec import NotFiniteError
from toolkit.comm.layout import Layout, Route
from toolkit.comm.ledger import Direction, Ledger, Phase
from toolkit.comm.position import begin_exchange
from toolkit.comm.transport import Arrived, Pending
from toolkit.comm.way import Way
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


Nodes: TypeAlias = NDArray[np.int64] | Tensor  # global ids; as a tensor, where their masks are wanted


def masked_halo(part: Part, step: LayerStep, route: Route) -> NDArray[np.int64]:
    """The halo nodes whose masks a step needs: those whose rows a rank holds, or gets the kept entries of."""
    if step.sends == "nothing":
        return part.halo_nodes
    return route.borrowed.nodes if step.kept_only else part.halo_nodes[:0]


def make_masks(inner: Nodes, halo: Nodes, step: LayerStep, width: int, seed: int, epoch: int) -> Masks | None:
    """Masks for input rows of ``width`` entries, or None where the step drops nothing."""
    kept = kept_per_row(width, step.dropout)
    if step.dropout == 0 or kept == width:
        return None

    def mask(nodes: Nodes) -> Tensor:
        return keyed_mask(seed, epoch, step.layer, nodes, width, kept)

    return Masks(inner=mask(inner), halo=mask(halo), scale=width / kept)


def keyed_mask(seed: int, epoch: int, layer: int, nodes: Nodes, width: int, kept: int) -> Tensor:
    """keyed.dropout_mask as a tensor, by the kernel where it is there, on a device by torch: the same bits."""
    if isinstance(nodes, Tensor):
        return device_mask.dropout_mask(seed, epoch, layer, nodes, width, kept)
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


class RowTap(Protocol):
    """Told the rows that are about to travel, of which ``out`` says which do; ``masks`` as in Way.post()."""

    def __call__(
        self, step: LayerStep, direction: Direction, out: Layout, rows_XD: Tensor, masks: Tensor | None
    ) -> None: ...


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
        noise: Noise,
        ledger: Ledger,
        phase: Phase,
        rank: int,
        overlap: bool = True,
        trace: RangeTrace | None = None,
        tap: RowTap | None = None,
    ) -> None:
        self._step, self._num_halo, self._ways, self._rank = step, num_halo, ways, rank
        self._noise, self._ledger, self._phase = noise, ledger, phase
        self._overlap, self._trace, self._tap = overlap, trace, tap
        kept = masks is not None and step.kept_only
        self._own_masks: Tensor | None = masks.inner if masks is not None and kept else None
        self._halo_masks: Tensor | None = masks.halo if masks is not None and kept else None
        self._pending: Pending | None = None
        self._ranges: Tensor | None = None
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
        payload, way, stage = self._wait("forward"), self._ways["forward"], self._stage("decode", "forward")
        return way.new_rows(payload, self._halo_masks, self._num_halo, self._step.width, self._dtype, stage)

    def backward_depart(self, halo_errors: Tensor) -> None:
        if self._step.backward:
            self._post(halo_errors, self._halo_masks, "backward")

    def backward_arrive(self, local_errors: Tensor) -> Tensor:
        if not self._step.backward:
            return local_errors
        payload, way = self._wait("backward"), self._ways["backward"]
        if len(way.into) == 0:
            return local_errors
        return way.add_rows(payload, self._own_masks, local_errors, self._stage("decode", "backward"))

    def _stage(self, name: str, direction: Direction) -> AbstractContextManager[None]:
        return self._ledger.stage(name, self._step.layer, direction)

    def _post(self, rows: Tensor, masks: Tensor | None, direction: Direction) -> None:
        step, way = self._step, self._ways[direction]
        self._ledger.count(self._phase, step.layer, direction, way.out.bytes_by_peer)
        begin_exchange(self._phase, step.layer, direction)
        self._ranges = None if self._trace is None else way.new_ranges()
        key = self._noise.key(self._phase, step.layer, direction)
        with self._finite(direction):
            if self._tap is not None:
                self._tap(step, direction, way.out, rows, masks)
            self._pending = way.post(rows, masks, key, self._ranges, self._stage("encode", direction))
        if not self._overlap:
            with self._stage("wait", direction), self._finite(direction):
                payload = self._pending.wait()
                self._pending = Arrived(payload, self._pending.flight_s(), self._pending.round_ends_s())

    def _wait(self, direction: Direction) -> Tensor:
        assert self._pending is not None, "arrive() without depart()"
        with self._stage("wait", direction), self._finite(direction):
            payload = self._pending.wait()
            self._ways[direction].check()
        if self._trace is not None and self._ranges is not None:
            self._trace(self._step, direction, self._ranges)
        self._ledger.add_seconds("flight", self._step.layer, direction, self._pending.flight_s())
        if self._phase == "train":
            self._ledger.round_ends_s[self._step.layer, direction] = self._pending.round_ends_s()
        self._pending = self._ranges = None
        return payload

    @contextmanager
    def _finite(self, direction: Direction) -> Iterator[None]:
        """A row that can't be quantised ends the run with a sentence that says where it was."""
        try:
            yield
        except NotFiniteError as error:
            when = f"epoch {self._noise.epoch + 1}" if self._phase == "train" else "evaluation"
            raise UserError(
                f"{when}, layer {self._step.layer}, {direction}, at rank {self._rank}: {error}; "
                "training diverged: lower train.lr or scale the features (data.feature_norm)"
            ) from None


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
