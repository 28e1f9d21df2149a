"""Moving one buffer per channel: the interface, and the case of a single rank.

A transport takes flat bytes ordered by receiver and gives flat bytes ordered by sender; how many
go where is known to both ends beforehand (the plan), so nothing but payload travels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Ready = Callable[[], None]  # returns when a payload that a device writes is there


class Pending(Protocol):
    """An exchange under way."""

    def wait(self) -> Tensor:
        """The bytes received, ordered by sender: uint8. Returns when all have arrived and all sent."""
        ...

    def flight_s(self) -> float:
        """Seconds from the start until the last message was done, after wait()."""
        ...

    def round_ends_s(self) -> tuple[float, ...]:
        """Seconds from the start until each round was over on this rank, after wait(); empty where there are none.

        Posted rounds are waited for in order, so one is over when it and all before it are: what MPI tells without
        looking at every message by itself.
        """
        ...


class Transport(Protocol):
    """Starts exchanges. Every rank starts the same ones in the same order, one at a time.

    Bytes arrive in ``into``, uint8 of their total size, or in a buffer of the transport's own. ``ready`` is
    called before the first byte is read or written.
    """

    name: str

    @property
    def takes_device_memory(self) -> bool:
        """Whether payload and ``into`` may lie on a GPU."""
        ...

    def start(
        self,
        payload: Tensor,
        send_bytes: Sequence[int],
        into: Tensor,
        receive_bytes: Sequence[int],
        ready: Ready | None = None,
    ) -> Pending: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """An exchange that is over."""

    payload: Tensor
    seconds: float
    rounds: tuple[float, ...] = ()

    def wait(self) -> Tensor:
        return self.payload

    def flight_s(self) -> float:
        return self.seconds

    def round_ends_s(self) -> tuple[float, ...]:
        return self.rounds


class Nothing:
    """A transport for one rank: there is nobody to talk to."""

    name = "none"
    takes_device_memory = False

    def start(
        self,
        payload: Tensor,
        send_bytes: Sequence[int],
        into: Tensor,
        receive_bytes: Sequence[int],
        ready: Ready | None = None,
    ) -> Pending:
        return Arrived(into, 0.0)

    def close(self) -> None:
        pass
