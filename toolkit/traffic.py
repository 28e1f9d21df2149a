"""What a plan sends over a partition: exact rows and bytes per channel, predicted before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.graph.partition import busiest
from toolkit.plan import STEPS, LayerShape, LayerStep, make_plan

Channels = NDArray[np.int64]  # [N, N, R] rows from sender to receiver of each reach (graph/cache.py)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """One layer, one direction, of one pass."""

    step: LayerStep
    direction: Literal["forward", "backward"]
    rows: NDArray[np.int64]  # [N, N]
    num_bytes: NDArray[np.int64]  # [N, N]


def flows(steps: tuple[LayerStep, ...], channels: Channels, bytes_per_entry: int) -> list[Flow]:
    """Everything that one pass sends: forward layers ascending, then backward descending."""
    found = []
    for step in steps:
        rows = rows_of(step, channels)
        found.append(Flow(step=step, direction="forward", rows=rows, num_bytes=rows * step.entries * bytes_per_entry))
    for step in reversed(steps):
        if step.backward:
            rows = rows_of(step, channels).T
            found.append(
                Flow(step=step, direction="backward", rows=rows, num_bytes=rows * step.entries * bytes_per_entry)
            )
    return found


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


def savings(shapes: tuple[LayerShape, ...], channels: Channels, bytes_per_entry: int) -> list[Saving]:
    """The papers' plan, then one step after the other."""
    found = []
    for taken in range(len(STEPS) + 1):
        plan = make_plan(shapes, frozenset(STEPS[:taken]))
        per_channel = total_bytes(flows(plan.train, channels, bytes_per_entry))
        found.append(
            Saving(
                step="paper" if taken == 0 else STEPS[taken - 1],
                total_bytes=int(per_channel.sum()),
                busiest_bytes=round(busiest(per_channel)),
            )
        )
    return found
