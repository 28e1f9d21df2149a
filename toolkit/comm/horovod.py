"""Horovod behind the same interfaces: alltoall as a transport, grouped allreduce for gradients.

mpi4py is imported first and stays the owner of MPI (thread level MULTIPLE); Horovod joins the
communicator it is given.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from toolkit.comm.position import waiting
from toolkit.comm.transport import Ready
from toolkit.errors import UserError

if TYPE_CHECKING:
    from mpi4py import MPI

INT32_MAX = 2**31 - 1


def installed() -> bool:
    """Whether Horovod can be imported, without importing it (that takes a second)."""
    return importlib.util.find_spec("horovod") is not None


def start(comm: MPI.Intracomm) -> Any:
    """Initialise Horovod on ``comm`` once and give its torch module. UserError if it is missing or lacks MPI."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise UserError(
            f"Horovod was asked for and can't be imported ({error}); `make setup` builds it, "
            "or set method.transport = 'ring' and train.reduction = 'mpi'"
        ) from None
    # Which gradients Horovod fuses depends on timing, and the bits of a sum on what it is fused with.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
    if not hvd.is_initialized():
        hvd.init(comm=comm)
    if hvd.size() != comm.size:
        raise UserError(f"Horovod sees {hvd.size()} ranks and MPI {comm.size}; start with horovodrun --mpi or mpirun")
    return hvd


def everywhere(comm: MPI.Intracomm) -> bool:
    """Whether Horovod starts on every rank; says why not where it is installed and does not. Collective."""
    from mpi4py import MPI

    found = installed()
    if found:
        try:
            importlib.import_module("horovod.torch")
        except Exception as error:  # built against another torch, say
            logging.getLogger("bitring").warning("Horovod is installed and does not work (%s)", error)
            found = False
    return bool(comm.allreduce(found, op=MPI.LAND))


class HorovodAlltoall:
    """The transport `horovod`."""

    name = "horovod"
    takes_device_memory = False

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._hvd = start(comm)
        self._count = 0

    def start(
        self,
        payload: Tensor,
        send_bytes: Sequence[int],
        into: Tensor,
        receive_bytes: Sequence[int],
        ready: Ready | None = None,
    ) -> HorovodPending:
        largest = max(sum(send_bytes), sum(receive_bytes))
        if largest > INT32_MAX:
            raise UserError(
                f"{largest} bytes in one exchange: Horovod's alltoall takes {INT32_MAX} at most; "
                "set method.transport = 'ring' or use more ranks"
            )
        self._count += 1
        if ready is not None:  # here, and not in Horovod's thread: the GPU idles until its rows are on the host
            ready()
        splits = torch.tensor(list(send_bytes), dtype=torch.int32)
        handle = self._hvd.alltoall_async(payload, splits=splits, name=f"rows.{self._count}")
        return HorovodPending(self._hvd, handle)

    def close(self) -> None:
        pass


class HorovodPending:
    """An alltoall that Horovod's own thread drives."""

    def __init__(self, hvd: Any, handle: Any) -> None:
        self._hvd, self._handle, self._begin = hvd, handle, time.perf_counter()
        self._flight_s = 0.0

    def wait(self) -> Tensor:
        with waiting("rows"):
            arrived: Tensor = self._hvd.synchronize(self._handle)[0]
        self._flight_s = time.perf_counter() - self._begin
        return arrived

    def flight_s(self) -> float:
        """Until it was waited for: Horovod does not tell when the last byte came."""
        return self._flight_s

    def round_ends_s(self) -> tuple[float, ...]:
        return ()
