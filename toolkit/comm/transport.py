"""Moving one buffer per channel: the interface, and the case of a single rank.

A transport takes flat bytes ordered by receiver and gives flat bytes ordered by sender; how many
go where is known to both ends beforehand (the plan), so nothing but payload travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Pending(Protocol):
    """An exchange under way."""

    def wait(self) -> Tensor:
        """The bytes received, ordered by sender: uint8. Returns when all have arrived and all sent."""
        ...

    def flight_s(self) -> float:
        """Seconds from the start until the last message was done, after wait()."""
        ...


class Transport(Protocol):
    """Starts exchanges. Every rank starts the same ones in the same order, one at a time."""

    name: str

    def start(self, payload: Tensor, send_bytes: Sequence[int], receive_bytes: Sequence[int]) -> Pending: ...

    def close(self) -> None: ...


class Nothing:
    """A transport for one rank: there is nobody to talk to."""

    name = "none"

    def start(self, payload: Tensor, send_bytes: Sequence[int], receive_bytes: Sequence[int]) -> Pending:
        return _Arrived()

    def close(self) -> None:
        pass


class _Arrived:
    def wait(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def flight_s(self) -> float:
        return 0.0
