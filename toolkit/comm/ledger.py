"""What was sent and how long it took: exact bytes per channel, seconds per stage."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Phase = Literal["setup", "train", "evaluate"]
Direction = Literal["forward", "backward"]
ByteKey = tuple[Phase, int, Direction]
StageKey = tuple[str, int, Direction]  # stage, layer, direction
WHOLE = -1  # the layer of a stage that belongs to none


class Clock(Protocol):
    """Moments of work that a device is given, told when they are over."""

    def now(self) -> Any: ...

    def between(self, begin: Any, end: Any) -> float:
        """Seconds; waits until the device has come to ``end``."""
        ...


@dataclass(slots=True)
class Ledger:
    """One rank's counts. ``sent[phase, layer, direction]`` is bytes to each receiver, [N].

    Stages are timed by the host's clock, or by ``clock``, whose moments are read when the seconds are taken.
    ``round_ends_s[layer, direction]`` is of the last training pass: when its rounds were over (comm/transport.py).
    """

    ranks: int
    clock: Clock | None = None
    sent: dict[ByteKey, NDArray[np.int64]] = field(default_factory=dict)
    weight_gradient_bytes: int = 0
    round_ends_s: dict[tuple[int, Direction], tuple[float, ...]] = field(default_factory=dict)
    _seconds: defaultdict[StageKey, float] = field(default_factory=lambda: defaultdict(float))
    _spans: list[tuple[StageKey, Any, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> defaultdict[StageKey, float]:
        """Seconds per stage, layer and direction since they were taken; waits for what the clock has not told yet."""
        if self.clock is not None:
            for key, begin, end in self._spans:
                self._seconds[key] += self.clock.between(begin, end)
            self._spans.clear()
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: defaultdict[StageKey, float]) -> None:
        """Replaces all, what the clock has not told yet too."""
        self._seconds = seconds
        self._spans.clear()

    def count(self, phase: Phase, layer: int, direction: Direction, bytes_to: Sequence[int]) -> None:
        key = (phase, layer, direction)
        if key not in self.sent:
            self.sent[key] = np.zeros(self.ranks, dtype=np.int64)
        self.sent[key] += np.asarray(bytes_to, dtype=np.int64)

    def phase_bytes(self, phase: Phase) -> int:
        """Bytes that this rank has sent in a phase."""
        return int(sum(int(sent.sum()) for (p, _, _), sent in self.sent.items() if p == phase))

    @contextmanager
    def stage(self, name: str, layer: int = WHOLE, direction: Direction = "forward") -> Iterator[None]:
        """Add the seconds of the block to a stage."""
        if self.clock is not None:
            moment = self.clock.now()
            yield
            self._spans.append(((name, layer, direction), moment, self.clock.now()))
            return
        begin = time.perf_counter()
        yield
        self._seconds[name, layer, direction] += time.perf_counter() - begin

    def add_seconds(self, name: str, layer: int, direction: Direction, seconds: float) -> None:
        """Add what somebody else has timed to a stage."""
        self._seconds[name, layer, direction] += seconds

    def take_seconds(self) -> dict[StageKey, float]:
        """The seconds since the last call."""
        taken = dict(self.seconds)
        self._seconds.clear()
        return taken


def by_stage(seconds: Mapping[StageKey, float]) -> dict[str, float]:
    """Summed over layers and directions."""
    total: defaultdict[str, float] = defaultdict(float)
    for (stage, _, _), value in seconds.items():
        total[stage] += value
    return dict(total)
