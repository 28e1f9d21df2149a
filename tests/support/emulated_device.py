"""A GPU in this process's own memory: the device kernels compiled by g++, and a side stream that dawdles.

What is submitted runs only when somebody waits for it, on the thread that waits: the latest that a real stream
could. Whoever reads before waiting finds memory that holds no result, and whoever writes to rows that are not
yet read spoils them; so a missing event changes bits. A missing fence does not, as the compute stream here is never
behind: ``told`` shows whether it was asked for.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from toolkit import native

POISON = 0xA5
_launching = threading.Lock()  # the emulation runs one launch at a time


@dataclass(frozen=True, slots=True, eq=False)
class OneAtATime(native.DeviceKernels):
    """The emulated kernels for ranks that are threads of one process."""

    def __call__(self, name: str, *arguments: Any) -> None:
        with _launching:
            native.DeviceKernels.__call__(self, name, *arguments)


@dataclass(frozen=True, slots=True)
class Mark:
    device: EmulatedDevice
    number: int  # of works submitted before

    def synchronize(self) -> None:
        self.device.run_until(self.number)


@dataclass(slots=True, eq=False)
class EmulatedDevice:
    """comm/device.py: Device. ``told`` lists what was asked of it, in order."""

    kernels: native.DeviceKernels | None
    at: torch.device = field(default_factory=lambda: torch.device("cpu"))
    told: list[str] = field(default_factory=list)
    works: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    lock: Any = field(default_factory=threading.RLock)

    @staticmethod
    def of(library: ctypes.CDLL | None) -> EmulatedDevice:
        return EmulatedDevice(None if library is None else OneAtATime(library, lambda: None))

    def pinned(self, count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.full((count * dtype.itemsize,), POISON, dtype=torch.uint8).view(dtype)

    def new_rows(self, count: int, width: int, dtype: torch.dtype, *, zero: bool) -> Tensor:
        return (
            torch.full((count, width), float("nan"), dtype=dtype) if not zero else torch.zeros(count, width).to(dtype)
        )

    def fence(self) -> None:
        self.told.append("fence")  # the compute stream is this process: it has done all that it was given

    def submit(self, work: Callable[[], None], *tensors: Tensor) -> None:
        with self.lock:
            self.told.append(f"submit {work.__name__}")
            self.works.append(work)

    def mark(self) -> Mark:
        return Mark(self, len(self.works))

    def join(self, event: Mark) -> None:
        self.told.append("join")
        event.synchronize()

    def run_until(self, number: int) -> None:
        with self.lock:
            while self.done < number:
                self.done += 1
                self.works[self.done - 1]()
