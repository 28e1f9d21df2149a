"""N ranks as N threads of one process: the exchange tested without MPI, on any N, under hypothesis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


class Meeting:
    """What the threads share: a board with a place for each rank, and a barrier."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.board: list[Any] = [None] * size

    def swap(self, rank: int, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        self.board[rank] = value
        self.barrier.wait()
        values = list(self.board)
        self.barrier.wait()
        return values


class LocalWorld:
    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size, self.meeting = rank, meeting.size, meeting

    def sum_in_place(self, values: np.ndarray) -> None:
        values[...] = sum(self.meeting.swap(self.rank, values.copy()))

    def gather(self, value: T) -> list[T] | None:
        values = self.meeting.swap(self.rank, value)
        return values if self.rank == 0 else None

    def broadcast(self, value: T) -> T:
        return self.meeting.swap(self.rank, value)[0]

    def ranks_on_host(self) -> int:
        return self.size

    def rank_on_host(self) -> int:
        return self.rank


class LocalTransport:
    name = "local"
    takes_device_memory = False

    def __init__(self, world: LocalWorld) -> None:
        self.world = world

    def start(
        self,
        payload: Tensor,
        send_bytes: Sequence[int],
        into: Tensor,
        receive_bytes: Sequence[int],
        ready: Callable[[], None] | None = None,
    ) -> Any:
        if ready is not None:
            ready()
        assert payload.dtype == torch.uint8 and len(payload) == sum(send_bytes)
        pieces = torch.split(payload.clone(), list(send_bytes))
        everyone = self.world.meeting.swap(self.world.rank, pieces)
        mine = [sent[self.world.rank] for sent in everyone]
        assert [len(piece) for piece in mine] == list(receive_bytes), "both ends must agree on every size"
        into.copy_(torch.cat(mine))
        return LocalPending(into)

    def close(self) -> None:
        pass


class LocalPending:
    def __init__(self, arrived: Tensor) -> None:
        self.arrived = arrived

    def wait(self) -> Tensor:
        return self.arrived

    def flight_s(self) -> float:
        return 0.0

    def round_ends_s(self) -> tuple[float, ...]:
        return ()


def run_ranks(size: int, work: Callable[[LocalWorld, LocalTransport], T]) -> list[T]:
    """Run ``work`` on every rank at once; results in rank order. The first failure is raised."""
    meeting = Meeting(size)
    worlds = [LocalWorld(rank, meeting) for rank in range(size)]

    def guarded(world: LocalWorld) -> T:
        try:
            return work(world, LocalTransport(world))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(guarded, world) for world in worlds]
    errors = [f.exception() for f in futures if f.exception() is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [f.result() for f in futures]
