"""The GPU of a rank: a stream beside the one that computes, events between the two, memory that both sides reach.

    compute stream   rows, fence | product over local rows ............... | join, product over halo rows
    side stream                  | quantise, to the host ... from the host, dequantise |
    host                                              ready, MPI, wait

The side stream is the exchange's: what is submitted to it runs in order, behind the last fence. The compute
stream waits for it at a join alone. ``Device`` is all that an exchange (way.py) knows of a GPU; tests put
another one behind it, whose side stream runs as late as it may.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from toolkit import native
from toolkit.comm.world import World
from toolkit.errors import UserError


class Event(Protocol):
    """A point of the side stream."""

    def synchronize(self) -> None:
        """Hold the calling thread until the stream has come that far."""
        ...


class Device(Protocol):
    """One GPU as an exchange sees it."""

    @property
    def at(self) -> torch.device:
        """Where its tensors lie."""
        ...

    @property
    def kernels(self) -> native.DeviceKernels | None:
        """None where they are not built: the host quantises then."""
        ...

    def pinned(self, count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Memory of the host that copies to and from the device need not wait for: [count]."""
        ...

    def new_rows(self, count: int, width: int, dtype: torch.dtype, *, zero: bool) -> Tensor:
        """Rows for the side stream to write and the compute stream to read: [count, width]."""
        ...

    def fence(self) -> None:
        """What is submitted from here on waits for what the compute stream has been given so far."""
        ...

    def submit(self, work: Callable[[], None], *tensors: Tensor) -> None:
        """Queue ``work`` on the side stream; it uses ``tensors``, whose memory must not be reused before."""
        ...

    def mark(self) -> Event:
        """The end of the side stream as it is now."""
        ...

    def join(self, event: Event) -> None:
        """Let the compute stream wait for ``event``; the caller does not."""
        ...


class CudaEvent:
    """An event that any thread may wait for: threads begin on the first device, whichever is ours."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # ranks may share cores
        self.event.record(stream)

    def synchronize(self) -> None:
        torch.cuda.set_device(self._device)  # a CUDA-aware MPI looks for it in this thread
        self.event.synchronize()


class Cuda:
    """A CUDA device by torch's streams, and the kernels of cuda/quantise.cu where they are built."""

    def __init__(self, index: int) -> None:
        self.at = torch.device("cuda", index)
        torch.cuda.set_device(self.at)
        self._side = torch.cuda.Stream(self.at, priority=-1)  # type: ignore[no-untyped-call]  # others wait for messages
        library = native.device_library()
        self.kernels = None if library is None else native.DeviceKernels(library, lambda: self._current().cuda_stream)

    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.at)

    def pinned(self, count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(count, dtype=dtype, pin_memory=True)

    def new_rows(self, count: int, width: int, dtype: torch.dtype, *, zero: bool) -> Tensor:
        with torch.cuda.stream(self._side):
            rows = (torch.zeros if zero else torch.empty)(count, width, dtype=dtype, device=self.at)
        rows.record_stream(self._current())
        return rows

    def fence(self) -> None:
        self._side.wait_stream(self._current())

    def submit(self, work: Callable[[], None], *tensors: Tensor) -> None:
        with torch.cuda.stream(self._side):
            work()
        for tensor in tensors:
            tensor.record_stream(self._side)

    def mark(self) -> CudaEvent:
        return CudaEvent(self.at, self._side)

    def join(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self._current().wait_event(event.event)


class CudaClock:
    """Seconds of the stream that a stage's work goes to (ledger.py): the host runs ahead of it."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def missing() -> str:
    """Why this process has no CUDA device, in a sentence; empty where it has one."""
    if torch.version.cuda is None:
        return (
            f"train.device is 'cuda', and this torch ({torch.__version__}) is built without CUDA; "
            "install one built with it, or set train.device = 'cpu'"
        )
    if not torch.cuda.is_available():
        return "train.device is 'cuda', and torch sees no CUDA device here (`bitring doctor`); set train.device = 'cpu'"
    return ""


def check(world: World) -> None:
    """UserError, on every rank, where any of them has no CUDA device. Collective."""
    refusals = world.gather(missing())
    told = world.broadcast(None if refusals is None else _first(refusals))
    if told:
        raise UserError(told)


def make(name: str, world: World) -> Device | None:
    """This rank's device, None for the CPU; UserError where there is none. Ranks of a host share its GPUs in turn."""
    if name == "cpu":
        return None
    if refusal := missing():
        raise UserError(refusal)
    return Cuda(world.rank_on_host() % torch.cuda.device_count())


def _first(refusals: list[str]) -> str:
    """One sentence for all, naming the rank where it is not all of them."""
    bad = [rank for rank, refusal in enumerate(refusals) if refusal]
    if not bad:
        return ""
    return refusals[bad[0]] if len(bad) == len(refusals) else f"at rank {bad[0]}: {refusals[bad[0]]}"


@functools.cache
def mpi_takes_device_memory() -> bool:
    """Whether the MPI that mpi4py uses says that it reads and writes a GPU's memory (Open MPI's MPIX call)."""
    from mpi4py import MPI

    try:
        # the module's own handle also finds what the libraries behind it define
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return False
    return bool(query())
