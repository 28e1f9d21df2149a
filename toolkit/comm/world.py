"""The ranks of a run: one process alone, or an MPI job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from numpy.typing import NDArray

from toolkit.comm.position import patience, waiting
from toolkit.errors import UserError

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


class World(Protocol):
    """Small collective operations. Every rank calls them in the same order."""

    rank: int
    size: int

    def sum_in_place(self, values: NDArray[Any]) -> None:
        """Replace ``values`` by its sum over ranks; the same bits on every rank."""
        ...

    def gather(self, value: T) -> list[T] | None:
        """All ranks' values, in rank order, at rank 0; None elsewhere."""
        ...

    def broadcast(self, value: T) -> T:
        """Rank 0's value, everywhere."""
        ...

    def ranks_on_host(self) -> int:
        """How many ranks share this host."""
        ...

    def rank_on_host(self) -> int:
        """Which of them this one is, from 0."""
        ...


class Solo:
    """One process, no MPI."""

    rank, size = 0, 1

    def sum_in_place(self, values: NDArray[Any]) -> None:
        pass

    def gather(self, value: T) -> list[T] | None:
        return [value]

    def broadcast(self, value: T) -> T:
        return value

    def ranks_on_host(self) -> int:
        return 1

    def rank_on_host(self) -> int:
        return 0


class MpiWorld:
    """An MPI job, over a communicator of its own. Importing mpi4py here starts MPI."""

    def __init__(self) -> None:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UserError(
                f"MPI runs at thread level {MPI.Query_thread()}, and the ring needs MPI_THREAD_MULTIPLE; "
                "unset MPI4PY_RC_THREAD_LEVEL, or use an MPI that was built with it (Open MPI 4 is)"
            )
        self.comm: MPI.Intracomm = MPI.COMM_WORLD.Dup()
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size

    def sum_in_place(self, values: NDArray[Any]) -> None:
        from mpi4py import MPI

        assert values.flags.c_contiguous, "summed in place, so it can't be copied first"
        with waiting("sum", values.nbytes):
            self.comm.Allreduce(MPI.IN_PLACE, values, op=MPI.SUM)

    def gather(self, value: T) -> list[T] | None:
        with waiting("gather"):
            result: list[T] | None = self.comm.gather(value, root=0)
        return result

    def broadcast(self, value: T) -> T:
        with waiting("broadcast"):
            result: T = self.comm.bcast(value, root=0)
        return result

    def ranks_on_host(self) -> int:
        return self._on_host()[1]

    def rank_on_host(self) -> int:
        return self._on_host()[0]

    def _on_host(self) -> tuple[int, int]:
        """This rank's number among those of its host, and their count. Collective."""
        from mpi4py import MPI

        together = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        try:
            return together.rank, together.size
        finally:
            together.Free()


def on_root(world: World, work: Callable[[], T]) -> T:
    """Run ``work`` at rank 0 and give its result to all; a UserError there is raised everywhere."""
    outcome: tuple[str, Any] = ("result", None)
    if world.rank == 0:
        try:
            outcome = ("result", work())
        except UserError as error:
            outcome = ("refused", str(error))
    with patience():
        kind, value = world.broadcast(outcome)
    if kind == "refused":
        raise UserError(value)
    result: T = value
    return result
