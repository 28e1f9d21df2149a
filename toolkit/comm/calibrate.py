"""What a message costs between every ordered pair of ranks, measured in the live job.

One pair at a time: the sender sends b bytes, the receiver answers with one. A message's own time is the
round trip less half of the round trip of one byte. Minima over repeats are what the link can do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.cost import Fit, fit
from toolkit.comm.position import waiting
from toolkit.comm.ring import wait_all

if TYPE_CHECKING:
    from mpi4py import MPI

REPEATS = 5
SIZES = 8


def sizes_between(low: int, high: int) -> list[int]:
    """Sizes in bytes, evenly spaced on a logarithmic scale; the range that will be used, and one byte."""
    low, high = max(low, 2), max(high, 2 * max(low, 2))
    return [1, *np.unique(np.geomspace(low, high, SIZES).astype(np.int64)).tolist()]


def measure(comm: MPI.Intracomm, sizes: Sequence[int], repeats: int = REPEATS) -> dict[tuple[int, int], Fit] | None:
    """Fitted costs of every ordered pair at rank 0; None elsewhere. Collective; sizes[0] is one byte."""
    own: dict[int, list[float]] = {}
    for sender in range(comm.size):
        for receiver in range(comm.size):
            if sender == receiver:
                continue
            if comm.rank in (sender, receiver):
                seconds = _ping(comm, sender, receiver, sizes, repeats)
                if comm.rank == sender:
                    own[receiver] = seconds
            with waiting("calibration"):
                wait_all([comm.Ibarrier()])
    with waiting("calibration"):
        gathered = comm.gather(own, root=0)
    if gathered is None:
        return None
    trips = {(s, r): np.array(seconds) for s, told in enumerate(gathered) for r, seconds in told.items()}
    return {pair: fit(np.array(sizes[1:]), _one_way(seconds)) for pair, seconds in trips.items()}


def _one_way(trips: NDArray[np.float64]) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = np.maximum(trips[1:] - trips[0] / 2, trips[0] / 2)
    return seconds


def _ping(comm: MPI.Intracomm, sender: int, receiver: int, sizes: Sequence[int], repeats: int) -> list[float]:
    """Least seconds of the round trip of each size."""
    payload, answer = np.zeros(max(sizes), np.uint8), np.zeros(1, np.uint8)
    best = []
    for size in sizes:
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            if comm.rank == sender:
                wait_all([comm.Irecv(answer, receiver), comm.Isend(payload[:size], receiver)])
            else:
                wait_all([comm.Irecv(payload[:size], sender)])
                wait_all([comm.Isend(answer, sender)])
            times.append(time.perf_counter() - begin)
        best.append(min(times))
    return best
