"""The critical path of an epoch: what its end was waiting for, all the way back to its beginning.

From the last rank's last stage back through that rank's stages; a wait leads to the message that ended it, and
that to its sender, or to the message for which it had to wait. The pieces follow one another without gaps: their
seconds add up to the epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simulator.timeline import Span, Transfer

SAME = 1e-9  # of the epoch: times closer than that are one
WAIT = "wait"
Item = TypeVar("Item", Span, Transfer)


class PathError(ValueError):
    """A timeline without a path through it: one sentence that says where it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stage of a rank, or a message from it, on the critical path."""

    rank: int
    stage: str
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def critical_path(spans: Sequence[Span], messages: Sequence[Transfer]) -> tuple[Piece, ...]:
    """The pieces of the path, first to last, of a timeline whose ranks' stages have no gaps. PathError."""
    return _Search(spans, messages).pieces()


def by_stage(path: Iterable[Piece]) -> list[tuple[int, str, float]]:
    """(rank, stage, seconds) added up, longest first."""
    total: defaultdict[tuple[int, str], float] = defaultdict(float)
    for piece in path:
        total[piece.rank, piece.stage] += piece.seconds
    return sorted(((rank, stage, s) for (rank, stage), s in total.items()), key=lambda one: (-one[2], one[0], one[1]))


class _Search:
    """Walks back in time; ``now`` falls from piece to piece."""

    def __init__(self, spans: Sequence[Span], messages: Sequence[Transfer]) -> None:
        self.end_s = max((span.end_s for span in spans), default=0.0)
        self.near = SAME * self.end_s
        self.spans: defaultdict[int, list[Span]] = defaultdict(list)
        for span in sorted(spans, key=lambda span: span.end_s):
            self.spans[span.rank].append(span)
        self.messages = sorted(messages, key=lambda message: message.end_s)

    def pieces(self) -> tuple[Piece, ...]:
        if not self.end_s:
            return ()
        found: list[Piece] = []
        now, rank = self.end_s, min(self._busy(), default=0)
        while now > self.near:
            item = self._before(now, rank)
            if isinstance(item, Span):
                rank, stage = item.rank, item.name
            else:
                rank, stage = item.sender, f"message to {item.receiver}, {item.name}"
            found.append(Piece(rank=rank, stage=stage, begin_s=item.begin_s, end_s=now))
            now = item.begin_s
        if found:  # what rounding leaves at the beginning belongs to the first piece
            first = found[-1]
            found[-1] = Piece(rank=first.rank, stage=first.stage, begin_s=0.0, end_s=first.end_s)
        return tuple(reversed(found))

    def _busy(self) -> list[int]:
        """Ranks whose last stage but the common one is no wait."""
        ends = [own for own in self.spans.values() if own and abs(own[-1].end_s - self.end_s) <= self.near]
        return [own[-1].rank for own in ends if len(own) < 2 or own[-2].name != WAIT]

    def _before(self, now: float, rank: int) -> Span | Transfer:
        """What ended at ``now`` and held up ``rank``: its own stage, else a message, else another rank's stage."""
        own = self._ending(self.spans[rank], now)
        if own is not None and own.name != WAIT:
            return own
        arrived = [m for m in self._messages_ending(now) if m.begin_s < now]
        mine = [m for m in arrived if rank in (m.sender, m.receiver)]
        if mine or arrived:
            return max(mine or arrived, key=lambda m: m.begin_s)
        for other in self.spans.values():  # a sum that all ranks come to, or a receiver that comes late
            span = self._ending(other, now)
            if span is not None and span.name != WAIT:
                return span
        raise PathError(f"nothing ends at {now:.9g} s, when rank {rank} goes on: this timeline has gaps")

    def _ending(self, own: list[Span], now: float) -> Span | None:
        found = None
        for span in _around(own, now, self.near):
            if span.begin_s < now and (found is None or abs(span.end_s - now) < abs(found.end_s - now)):
                found = span
        return found

    def _messages_ending(self, now: float) -> list[Transfer]:
        return _around(self.messages, now, self.near)


def _around(items: list[Item], now: float, near: float) -> list[Item]:
    """Those that end within ``near`` of now; ``items`` are sorted by their end."""
    first = bisect_left(items, now - near, key=lambda item: item.end_s)
    found = []
    for item in items[first:]:
        if item.end_s > now + near:
            break
        found.append(item)
    return found
