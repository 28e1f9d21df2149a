"""What a rank sets for its own process: threads, an allocator that keeps what it has, answers to signals."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

import torch

from toolkit import launch
from toolkit.comm.world import World

# mallopt parameters of glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def prepare_process(world: World, threads: int) -> int:
    """Set the threads of this rank (0: cores of the host over the ranks on it) and the allocator; give the threads."""
    if threads == 0:
        threads = max(1, launch.cores() // world.ranks_on_host())
    torch.set_num_threads(threads)
    keep_freed_memory()
    return threads


def keep_freed_memory() -> None:
    """glibc hands large temporaries back to the system at once, and each next one pays its page faults again."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 64 << 20)


class Stopped(Exception):
    """The run was asked to stop by a signal, has saved its state, and ends. Raised on every rank at the same epoch."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopRequests:
    """In a with block SIGTERM, SIGUSR1 and SIGINT are noted, not obeyed; a second SIGINT interrupts."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no handlers
            self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number
