"""What a message costs between every ordered pair of ranks, measured in the live job.

The sender sends b bytes, the receiver answers with one. A message's own time is the round trip less half of the round
trip of one byte. Minima over repeats are what the link can do. Where every rank has a host of its own, pairs that
share no rank are measured at the same time, N/2 of them: what hosts share beyond their cards (an uplink) is then
measured as busy as a ring keeps it. Ranks of one host could share a card, and pairs wait for each other.
"""

from __future__ import annotations

import itertools
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
FEWEST = 2  # repeats of a size, however long they take
ENOUGH_S = 0.05  # of a size: a message this long is hardly disturbed by what disturbs short ones
SIZES = 8
Pair = tuple[int, int]


def sizes_between(low: int, high: int) -> list[int]:
    """Sizes in bytes, evenly spaced on a logarithmic scale; the range that will be used, and one byte."""
    low, high = max(low, 2), max(high, 2 * max(low, 2))
    return [1, *np.unique(np.geomspace(low, high, SIZES).astype(np.int64)).tolist()]


def schedule(ranks: int, *, at_once: bool) -> list[list[Pair]]:
    """All pairs of ranks in rounds; no rank is twice in a round. Not ``at_once``: one pair a round.

    As in a tournament: one stays, the others move on by a place; of an odd number one rests.
    """
    if not at_once:
        return [[pair] for pair in itertools.combinations(range(ranks), 2)]
    places = list(range(ranks + ranks % 2))
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], places[: half - 1 : -1], strict=True)
        rounds.append([(a, b) for a, b in pairs if max(a, b) < ranks])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def measure(comm: MPI.Intracomm, sizes: Sequence[int], repeats: int = REPEATS) -> dict[Pair, Fit] | None:
    """Fitted costs of every ordered pair at rank 0; None elsewhere. Collective; sizes[0] is one byte."""
    from mpi4py import MPI

    with waiting("calibration"):
        hosts = comm.allgather(MPI.Get_processor_name())
    own: dict[int, list[float]] = {}
    for pairs in schedule(comm.size, at_once=len(set(hosts)) == comm.size):
        for a, b in pairs:
            for sender, receiver in ((a, b), (b, a)):
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
    """Least seconds of the round trip of each size. A payload's first byte: whether it is the last of its size."""
    payload, answer = np.zeros(max(sizes), np.uint8), np.zeros(1, np.uint8)
    best = []
    for size in sizes:
        times: list[float] = []
        payload[0] = False
        while not payload[0]:
            begin = time.perf_counter()
            if comm.rank == sender:
                # the first trip may have set up the connection
                payload[0] = len(times) + 1 >= repeats or (len(times) + 1 >= FEWEST and sum(times[1:]) > ENOUGH_S)
                wait_all([comm.Irecv(answer, receiver), comm.Isend(payload[:size], receiver)])
            else:
                wait_all([comm.Irecv(payload[:size], sender)])
                wait_all([comm.Isend(answer, sender)])
            times.append(time.perf_counter() - begin)
        best.append(min(times))
    return best
