"""Where a rank is: what it does, and the last operations it took part in, in 512 bytes that others may read.

The words of a slot, all int64 (``Word``), then a ring of the last operations, two words each:

    index i % HISTORY -> | what, direction, phase, layer, epoch packed | bytes |

Every rank takes part in the same operations in the same order, so two ranks with different words
at one index are out of step: each waits for what the other will never do (watch.py judges so).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Literal

from toolkit.comm.ledger import Direction, Phase

WORDS = 64
HISTORY = 16
_RING = WORDS - 2 * HISTORY
Operation = Literal["rows", "sum", "gather", "broadcast", "weight gradients", "calibration"]
OPERATIONS: tuple[Operation, ...] = ("rows", "sum", "gather", "broadcast", "weight gradients", "calibration")
IN_WORDS: dict[Operation, str] = {
    "rows": "the exchange of rows",
    "sum": "a sum over ranks",
    "gather": "a gather at rank 0",
    "broadcast": "a broadcast of rank 0",
    "weight gradients": "the sum of weight gradients",
    "calibration": "the measurement of messages",
}
PHASES: tuple[Phase, ...] = ("setup", "train", "evaluate")


class Word(IntEnum):
    """What stands where in a slot."""

    PID = 0
    STARTED = 1  # when the process did, in clock ticks: tells it from a later one of the same number
    BEAT = 2
    OPERATIONS = 3  # how many this rank has begun
    WAITING = 4
    EPOCH = 5  # from 1; 0 before the first
    PHASE = 6
    LAYER = 7  # of the exchange under way or the last one; -1: none yet
    BACKWARD = 8
    ROUND = 9  # from 1; 0: none yet
    LEAVING = 10
    PATIENT = 11


def empty() -> memoryview:
    """A slot that nobody else sees."""
    slot = memoryview(bytearray(8 * WORDS)).cast("q")
    slot[Word.LAYER] = -1
    return slot


_here: memoryview = empty()


def move_to(slot: memoryview) -> None:
    """From here on this process tells its position in ``slot``, from the beginning."""
    global _here
    slot[:] = empty()
    _here = slot


def here() -> memoryview:
    """This process's slot."""
    return _here


def begin_epoch(epoch: int) -> None:
    """The epoch that this rank is in, from 0."""
    slot = _here
    slot[5], slot[6] = epoch + 1, 1


def begin_exchange(phase: Phase, layer: int, direction: Direction) -> None:
    """The exchange of rows that this rank starts."""
    slot = _here
    slot[6], slot[7], slot[8], slot[9] = PHASES.index(phase), layer, direction == "backward", 1


def begin_round(number: int) -> None:
    """The round of that exchange, from 1; a transport without rounds (Horovod's) stays in the first."""
    _here[9] = number


class waiting:
    """The block waits for other ranks: ``what`` is the next operation of this rank's sequence."""

    __slots__ = ("_bytes", "_what")

    def __init__(self, what: Operation, num_bytes: int = 0) -> None:
        self._what, self._bytes = OPERATIONS.index(what), num_bytes

    def __enter__(self) -> None:
        slot, what = _here, self._what
        at = _RING + 2 * (slot[3] % HISTORY)
        where = slot[8] << 8 | slot[6] << 10 | slot[7] + 1 << 16 if what == 0 else 0
        slot[at], slot[at + 1] = what | where | slot[5] << 32, self._bytes
        slot[3] += 1
        slot[4] = 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        _here[4] = 0


@contextmanager
def patience() -> Iterator[None]:
    """The block waits for what rank 0 alone does, which may take it minutes without a sign of life."""
    _here[Word.PATIENT] = 1
    try:
        yield
    finally:
        _here[Word.PATIENT] = 0


@dataclass(frozen=True, slots=True)
class Position:
    """A slot as it was when it was read."""

    words: tuple[int, ...]

    @staticmethod
    def of(slot: Sequence[int] | memoryview) -> Position:
        return Position(tuple(slot))

    @property
    def waits(self) -> bool:
        return bool(self.words[Word.WAITING])

    @property
    def leaving(self) -> bool:
        return bool(self.words[Word.LEAVING])

    @property
    def moves(self) -> tuple[int, ...]:
        """Changes whenever the rank gets on."""
        return self.words[Word.OPERATIONS : Word.LEAVING]

    def operation(self, index: int) -> tuple[int, int] | None:
        """The operation of that index, None where it is to come or forgotten."""
        begun = self.words[Word.OPERATIONS]
        if not max(0, begun - HISTORY) <= index < begun:
            return None
        at = _RING + 2 * (index % HISTORY)
        return self.words[at], self.words[at + 1]

    @property
    def begun(self) -> range:
        """Indices of the operations that it remembers."""
        count = self.words[Word.OPERATIONS]
        return range(max(0, count - HISTORY), count)

    def __str__(self) -> str:
        words = self.words
        parts = [f"epoch {words[Word.EPOCH]}" if words[Word.EPOCH] else "the start-up"]
        if words[Word.LAYER] >= 0:
            evaluates = PHASES[words[Word.PHASE]] == "evaluate"
            parts += ["evaluation"] * evaluates + [f"layer {words[Word.LAYER]}"]
            parts += ["backward" if words[Word.BACKWARD] else "forward", f"round {words[Word.ROUND]}"]
        last = self.operation(words[Word.OPERATIONS] - 1)
        parts.append(f"in {IN_WORDS[OPERATIONS[last[0] & 0xFF]]}" if self.waits and last else "computing")
        return ", ".join(parts)


def first_difference(positions: dict[int, Position]) -> dict[int, Position] | None:
    """The ranks that took another operation than most, at the first index where any did; None: all in step.

    Of two equally large groups the one without the lowest rank.
    """
    for index in sorted(set().union(*(p.begun for p in positions.values()))):
        groups: dict[tuple[int, int], list[int]] = {}
        for rank in sorted(positions):
            if (operation := positions[rank].operation(index)) is not None:
                groups.setdefault(operation, []).append(rank)
        if len(groups) > 1:
            most = max(groups.values(), key=len)  # the first of equals: the one with the lowest rank
            return {rank: positions[rank] for ranks in groups.values() if ranks is not most for rank in ranks}
    return None
