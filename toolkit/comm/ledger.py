"""What was sent and how long it took: exact bytes per channel, seconds per stage."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Phase = Literal["setup", "train", "evaluate"]
Direction = Literal["forward", "backward"]
ByteKey = tuple[Phase, int, Direction]


@dataclass(slots=True)
class Ledger:
    """One rank's counts. ``sent[phase, layer, direction]`` is bytes to each receiver, [N]."""

    ranks: int
    sent: dict[ByteKey, NDArray[np.int64]] = field(default_factory=dict)
    weight_gradient_bytes: int = 0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def count(self, phase: Phase, layer: int, direction: Direction, bytes_to: Sequence[int]) -> None:
        key = (phase, layer, direction)
        if key not in self.sent:
            self.sent[key] = np.zeros(self.ranks, dtype=np.int64)
        self.sent[key] += np.asarray(bytes_to, dtype=np.int64)

    def phase_bytes(self, phase: Phase) -> int:
        """Bytes that this rank has sent in a phase."""
        return int(sum(int(sent.sum()) for (p, _, _), sent in self.sent.items() if p == phase))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to a stage."""
        begin = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - begin

    def take_seconds(self) -> dict[str, float]:
        """Seconds per stage since the last call."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken
