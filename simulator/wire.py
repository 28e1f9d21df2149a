"""How the messages of an exchange go: over which network, by which rules of the ring, how slow just now.

Shapes: N ranks, any leading batch axes (epochs, choices). Bytes are [..., N, N], row the sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.cost import CostError, PairCosts
from simulator.events import RingRun, run_ring, run_shared
from simulator.maxplus import Semantics, ring_finish
from simulator.topology import Topology

F64 = NDArray[np.float64]
Links = Literal["shared", "apart"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wire:
    """The costs of pairs, or links that messages share fairly.

    ``links``, for costs of pairs: whether a rank's messages go one after another, or every pair has a link of its
    own. That matters for posted messages only: in the other semantics one goes at a time. ``slow`` multiplies what a
    message of each pair takes; links that are shared have no pairs to slow down.
    """

    network: PairCosts | Topology
    semantics: Semantics = "posted"
    links: Links = "apart"
    slow: F64 | None = None  # [..., N, N] row the sender

    def __post_init__(self) -> None:
        if self.slow is not None and isinstance(self.network, Topology):
            raise CostError("a pair's slowness needs costs of pairs, not links that messages share")

    @property
    def apart(self) -> bool:
        """Whether no message waits for another one."""
        return self.semantics == "posted" and self.links == "apart" and not isinstance(self.network, Topology)

    def flight(self, num_bytes: ArrayLike, start: F64) -> F64:
        """When each rank has sent and received all of an exchange: [..., N], on the clock of ``start`` [..., N]."""
        if isinstance(self.network, Topology):
            return self._one_by_one(np.asarray(num_bytes), start)
        ring = self._ring(num_bytes)
        if not self.apart:
            return ring_finish(ring, start, self.semantics)
        arrival = ring + start[..., None, :]  # row the receiver
        done: F64 = np.maximum(start, np.maximum(arrival.max(axis=-1), arrival.max(axis=-2)))
        return done

    def run(self, num_bytes: ArrayLike, start: F64) -> RingRun:
        """The same message by message, no batch: when each begins and ends."""
        if isinstance(self.network, Topology):
            return run_shared(np.asarray(num_bytes).T, start, self.semantics, self.network)
        ring = self._ring(num_bytes)
        if self.apart:
            begin = np.where(np.isfinite(ring), start[None, :], np.nan)
            return RingRun(finish_s=self.flight(num_bytes, start), begin_s=begin, end_s=begin + ring)
        return run_ring(ring, start, self.semantics)

    def _ring(self, num_bytes: ArrayLike) -> F64:
        assert isinstance(self.network, PairCosts)
        ring = self.network.ring_costs(num_bytes)
        if self.slow is None:
            return ring
        factor = np.swapaxes(self.slow, -1, -2)
        return np.where(np.isfinite(ring), ring, 0.0) * factor + np.where(np.isfinite(ring), 0.0, ring)

    def _one_by_one(self, num_bytes: NDArray[np.generic], start: F64) -> F64:
        """Events take no batch axes."""
        batch = np.broadcast_shapes(num_bytes.shape[:-2], start.shape[:-1])
        sizes = np.broadcast_to(num_bytes, (*batch, *num_bytes.shape[-2:]))
        starts = np.broadcast_to(start, (*batch, start.shape[-1]))
        finish = np.empty(starts.shape)
        for index in np.ndindex(*batch):
            finish[index] = self.run(sizes[index], starts[index]).finish_s
        return finish
