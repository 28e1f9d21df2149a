"""Ring all2all over mpi4py.

N - 1 rounds; in round i rank r sends to (r + i) mod N and receives from (r - i) mod N. At N = 4:

    round   rank 0      rank 1      rank 2      rank 3
      1     to 1 fr 3   to 2 fr 0   to 3 fr 1   to 0 fr 2
      2     to 2 fr 2   to 3 fr 3   to 0 fr 0   to 1 fr 1
      3     to 3 fr 1   to 0 fr 2   to 1 fr 3   to 2 fr 0

Semantics: `posted` starts all rounds at once and waits for them in order; `rendezvous` starts a
round when this rank's last is done, its sends being synchronous; `barrier` starts a round when
every rank's last is done. A thread of its own drives the messages, so that they move while the
caller computes; it also waits for a payload that a GPU writes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from toolkit.comm.device import mpi_takes_device_memory
from toolkit.comm.position import begin_round, waiting
from toolkit.comm.transport import Ready

if TYPE_CHECKING:
    from mpi4py import MPI

Semantics = Literal["posted", "rendezvous", "barrier"]
PIECE_BYTES = 1 << 30  # MPI counts are 32-bit: longer messages go in pieces
SPINS_BEFORE_NAP = 200
NAP_S = 20e-6


def ring_rounds(rank: int, size: int) -> list[tuple[int, int]]:
    """(receiver, sender) of each round, for one rank: the table above."""
    return [((rank + i) % size, (rank - i) % size) for i in range(1, size)]


class Ring:
    """The transport `ring`."""

    name = "ring"

    def __init__(self, comm: MPI.Intracomm, semantics: Semantics) -> None:
        self._comm = comm.Dup()  # its own context: no message can meet another's
        self._rounds = ring_rounds(comm.rank, comm.size)
        self._semantics = semantics
        self._driver = ThreadPoolExecutor(1, thread_name_prefix="ring")

    @property
    def takes_device_memory(self) -> bool:
        return mpi_takes_device_memory()

    def start(
        self,
        payload: Tensor,
        send_bytes: Sequence[int],
        into: Tensor,
        receive_bytes: Sequence[int],
        ready: Ready | None = None,
    ) -> RingPending:
        sends = torch.split(payload, list(send_bytes))
        receives = torch.split(into, list(receive_bytes))
        return RingPending(self._driver.submit(self._drive, sends, receives, ready), into)

    def close(self) -> None:
        self._driver.shutdown()
        self._comm.Free()

    def _drive(self, sends: Sequence[Tensor], receives: Sequence[Tensor], ready: Ready | None) -> tuple[float, ...]:
        """When each round is over, in seconds from the start."""
        if ready is not None:
            ready()
        begin, ends = time.perf_counter(), []
        if self._semantics == "posted":
            posted = [
                self._post(receives[sender], sender, sends[receiver], receiver, synchronous=False)
                for receiver, sender in self._rounds
            ]
            for number, requests in enumerate(posted, 1):
                begin_round(number)
                wait_all(requests)
                ends.append(time.perf_counter() - begin)
        else:
            for number, (receiver, sender) in enumerate(self._rounds, 1):
                begin_round(number)
                wait_all(self._post(receives[sender], sender, sends[receiver], receiver, synchronous=True))
                if self._semantics == "barrier":
                    wait_all([self._comm.Ibarrier()])
                ends.append(time.perf_counter() - begin)
        return tuple(ends)

    def _post(self, into: Tensor, sender: int, out: Tensor, receiver: int, *, synchronous: bool) -> list[MPI.Request]:
        isend = self._comm.Issend if synchronous else self._comm.Isend
        requests = [self._comm.Irecv(_memory(piece), sender) for piece in _pieces(into)]
        return requests + [isend(_memory(piece), receiver) for piece in _pieces(out)]


def _pieces(buffer: Tensor) -> Sequence[Tensor]:
    """Nothing for an empty message: both ends know that it is empty."""
    return torch.split(buffer, PIECE_BYTES) if len(buffer) else ()


def _memory(piece: Tensor) -> Any:
    """What mpi4py takes: an array, or a tensor on a GPU itself."""
    return piece.numpy() if piece.device.type == "cpu" else piece


class RingPending:
    """A ring under way in its driver thread."""

    def __init__(self, future: Future[tuple[float, ...]], arrived: Tensor) -> None:
        self._future, self._arrived = future, arrived

    def wait(self) -> Tensor:
        with waiting("rows"):
            self._future.result()
        return self._arrived

    def flight_s(self) -> float:
        return max(self.round_ends_s(), default=0.0)

    def round_ends_s(self) -> tuple[float, ...]:
        return self._future.result()


def wait_all(requests: list[MPI.Request]) -> None:
    """Wait without burning a core: spin a little, then nap between looks.

    With more ranks than cores a spinning rank keeps the one it waits for from running.
    """
    from mpi4py import MPI

    spins = 0
    while not MPI.Request.Testall(requests):
        spins += 1
        time.sleep(0 if spins < SPINS_BEFORE_NAP else NAP_S)
