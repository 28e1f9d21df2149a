"""What a plan sends over a partition: exact rows and bytes per channel, predicted before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.graph.partition import busiest
from toolkit.plan import STEPS, LayerShape, LayerStep, RowBytes, make_plan

Channels = NDArray[np.int64]  # [N, N, R] rows from sender to receiver of each reach (graph/cache.py)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """One layer, one direction, of one pass."""

    step: LayerStep
    direction: Literal["forward", "backward"]
    rows: NDArray[np.int64]  # [N, N]
    num_bytes: NDArray[np.int64]  # [N, N]


def flows(steps: tuple[LayerStep, ...], channels: Channels, row_bytes: RowBytes) -> list[Flow]:
    """Everything that one pass sends: forward layers ascending, then backward descending."""
    found = [_flow(step, "forward", rows_of(step, channels), row_bytes) for step in steps]
    return found + [
        _flow(step, "backward", rows_of(step, channels).T, row_bytes) for step in reversed(steps) if step.backward
    ]


def _flow(
    step: LayerStep, direction: Literal["forward", "backward"], rows: NDArray[np.int64], row_bytes: RowBytes
) -> Flow:
    num_bytes = np.rint(rows * row_bytes(step)).astype(np.int64)  # whole, but for the average of drawn widths
    return Flow(step=step, direction=direction, rows=rows, num_bytes=num_bytes)


def rows_of(step: LayerStep, channels: Channels) -> NDArray[np.int64]:
    """[N, N] rows that travel forward in a step."""
    if step.sends == "nothing":
        return np.zeros(channels.shape[:2], dtype=np.int64)
    reaches = channels if step.max_reach is None else channels[:, :, : step.max_reach + 1]
    total: NDArray[np.int64] = reaches.sum(axis=2)
    return total


def total_bytes(found: list[Flow]) -> NDArray[np.int64]:
    """[N, N] bytes of a pass on each channel."""
    return sum((flow.num_bytes for flow in found), np.zeros_like(found[0].num_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A training epoch's bytes after taking the first so many steps of the exact plan."""

    step: str
    total_bytes: int
    busiest_bytes: int


def savings(shapes: tuple[LayerShape, ...], channels: Channels, row_bytes: RowBytes) -> list[Saving]:
    """The papers' plan, then one step after the other."""
    found = []
    for taken in range(len(STEPS) + 1):
        plan = make_plan(shapes, frozenset(STEPS[:taken]))
        per_channel = total_bytes(flows(plan.train, channels, row_bytes))
        found.append(
            Saving(
                step="paper" if taken == 0 else STEPS[taken - 1],
                total_bytes=int(per_channel.sum()),
                busiest_bytes=round(busiest(per_channel)),
            )
        )
    return found
