"""Timelines: a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, and a Gantt picture.

The trace is the Trace Event Format of Chrome, JSON in gz: one track per device and one per link, an arrow
from each send to its receive, counters of the bytes in flight and of their bits an entry. Times in it are
microseconds. What overlaps on one track goes to a second one of the same name.
"""

from __future__ import annotations

import gzip
import importlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from simulator.events import RingRun

DEVICES, LINKS, NETWORK = 1, 2, 3  # processes of the trace
PROCESSES = {DEVICES: "devices", LINKS: "links", NETWORK: "network"}
SMALLEST = 256  # bytes of an empty trace, and a margin
COUNTER_BYTES = 320  # two counters' lines at most
SMALLEST_FLYING = 0.5  # bytes; below it are roundings of sums
MAX_BYTES = 200 << 20  # of JSON before compression: what a browser still opens


class TimelineError(ValueError):
    """A timeline that can't be drawn: one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a device does from ``begin_s`` to ``end_s``. ``rank`` is its track."""

    rank: int
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One message on the link from ``sender`` to ``receiver``."""

    sender: int
    receiver: int
    begin_s: float
    end_s: float
    num_bytes: float = 0.0
    name: str = "message"
    bits: float = 0.0  # of an entry, on average; 0: not told


Item = TypeVar("Item", Span, Transfer)


def transfers(
    run: RingRun, num_bytes: ArrayLike, name: str = "message", bits: ArrayLike | None = None
) -> tuple[Transfer, ...]:
    """The messages of a ring. ``num_bytes`` and ``bits`` of an entry [N, N], row the *receiver* as in the run."""
    sizes = np.asarray(num_bytes, np.float64)
    if sizes.shape != run.begin_s.shape:
        raise TimelineError(f"the run is of {run.begin_s.shape} messages, the bytes of {sizes.shape}")
    widths = np.zeros(sizes.shape) if bits is None else np.asarray(bits, np.float64)
    return tuple(
        Transfer(
            sender=int(s),
            receiver=int(r),
            begin_s=float(run.begin_s[r, s]),
            end_s=float(run.end_s[r, s]),
            num_bytes=float(sizes[r, s]),
            name=name,
            bits=float(widths[r, s]),
        )
        for r, s in np.argwhere(np.isfinite(run.begin_s))
    )


def write_trace(
    path: Path,
    spans: Sequence[Span],
    messages: Sequence[Transfer],
    *,
    window_s: tuple[float, float] = (-math.inf, math.inf),
    max_bytes: int = MAX_BYTES,
) -> int:
    """Write a gz trace of what touches the window; the number of spans and messages that ``max_bytes`` cut off.

    ``max_bytes`` bounds the JSON before compression. What begins latest is cut, and the trace says how much.
    The file is replaced in one step. Errors: TimelineError.
    """
    if max_bytes < SMALLEST:
        raise TimelineError(f"a trace of at most {max_bytes} bytes can't hold anything: allow {SMALLEST} or more")
    kept: list[Span | Transfer] = [*_inside(spans, window_s), *_inside(messages, window_s)]
    kept.sort(key=lambda item: (item.begin_s, item.end_s))
    trace = _Trace()
    shown = 0
    for item in kept:
        if not trace.add(item, max_bytes - SMALLEST):
            break
        shown += 1
    about = {"displayTimeUnit": "ms", "otherData": {"cut off by the size cap": len(kept) - shown}}
    text = _json(about)[:-1] + ',"traceEvents":[\n' + ",\n".join(trace.lines + trace.counters()) + "\n]}\n"
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as file:
        file.write(text.encode())
    temporary.replace(path)
    return len(kept) - shown


def _inside(items: Iterable[Item], window_s: tuple[float, float]) -> Iterator[Item]:
    low, high = window_s
    for item in items:
        if not (math.isfinite(item.begin_s) and math.isfinite(item.end_s) and item.begin_s <= item.end_s):
            raise TimelineError(f"{item.name} lasts from {item.begin_s} to {item.end_s} s: times are finite, in order")
        if item.end_s >= low and item.begin_s <= high:
            yield item


def _json(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":"), allow_nan=False)


class _Trace:
    """Lines of JSON, and the tracks they are on. Items must come in order of their beginning."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._bytes = 0
        self._lanes: dict[tuple[int, str], list[tuple[float, int]]] = {}  # of a track: (free from, its number)
        self._processes: set[int] = set()
        self._messages = 0
        self._steps: list[tuple[float, float, float]] = []  # (seconds, bytes that start or stop flying, x their bits)

    def add(self, item: Span | Transfer, room: int) -> bool:
        """Whether the item still fits into ``room`` bytes in all; nothing of it stands in the trace if not."""
        before, lanes = len(self.lines), {track: list(free) for track, free in self._tracks(item)}
        if isinstance(item, Span):
            self._slice(DEVICES, f"rank {item.rank}", item, item.name, {})
        else:
            self._message(item)
        grown = self._bytes + sum(len(line) + 2 for line in self.lines[before:])
        counted = COUNTER_BYTES * len(self._steps)
        if grown + counted > room:
            del self.lines[before:]
            self._lanes.update(lanes)
            if isinstance(item, Transfer):
                del self._steps[-2:]
            return False
        self._bytes = grown
        return True

    def counters(self) -> list[str]:
        """Bytes in flight, and the bits of an entry that they have on average: a step at each beginning and end."""
        lines, flying, weighted = [], 0.0, 0.0
        steps = sorted(self._steps)
        told = any(weight for _, _, weight in steps)
        for index, (time, change, weight) in enumerate(steps):
            flying, weighted = flying + change, weighted + weight
            if index + 1 == len(steps) or steps[index + 1][0] > time:
                lines.append(self._counter("bytes in flight", time, {"bytes": max(0.0, round(flying, 3))}))
                if told:
                    bits = weighted / flying if flying > SMALLEST_FLYING else 0.0
                    lines.append(self._counter("bits in flight", time, {"bits": max(0.0, round(bits, 3))}))
        return lines

    def _counter(self, name: str, time: float, value: dict[str, float]) -> str:
        return _json({"ph": "C", "pid": NETWORK, "name": name, "ts": _micro(time), "args": value})

    def _tracks(self, item: Span | Transfer) -> Iterator[tuple[tuple[int, str], list[tuple[float, int]]]]:
        if isinstance(item, Span):
            names = [(DEVICES, f"rank {item.rank}")]
        else:
            names = [(LINKS, f"{item.sender} to {item.receiver}"), (DEVICES, f"rank {item.receiver} receives")]
        for track in names:
            yield track, self._lanes.get(track, [])

    def _message(self, item: Transfer) -> None:
        what = {"bytes": item.num_bytes} | ({"bits": round(item.bits, 3)} if item.bits else {})
        link, receives = (track for track, _ in self._tracks(item))
        sent = self._slice(*link, item, item.name, what)
        arrived = self._slice(*receives, item, f"{item.name} from {item.sender}", what)
        self._messages += 1
        arrow = {"name": item.name, "cat": "message", "id": self._messages}
        # The arrow's head binds to the slice around it, so it stands just before the slice's end.
        head_s = item.begin_s + 0.999 * (item.end_s - item.begin_s)
        self.lines.append(_json({"ph": "s", "pid": LINKS, "tid": sent, "ts": _micro(item.begin_s), **arrow}))
        self.lines.append(_json({"ph": "f", "bp": "e", "pid": DEVICES, "tid": arrived, "ts": _micro(head_s), **arrow}))
        weight = item.num_bytes * item.bits
        self._steps += [(item.begin_s, item.num_bytes, weight), (item.end_s, -item.num_bytes, -weight)]

    def _slice(self, pid: int, name: str, item: Span | Transfer, label: str, args: dict[str, Any]) -> int:
        tid = self._lane(pid, name, item)
        begin = _micro(item.begin_s)
        duration = round(max(0.0, _micro(item.end_s) - begin), 3)
        entry = {"ph": "X", "pid": pid, "tid": tid, "name": label, "ts": begin, "dur": duration, "args": args}
        self.lines.append(_json(entry))
        return tid

    def _lane(self, pid: int, name: str, item: Span | Transfer) -> int:
        """The number of a free track of that name: slices of one track must not overlap."""
        if pid not in self._processes:
            self._processes.add(pid)
            self._name("process_name", pid, 0, PROCESSES[pid])
        lanes = self._lanes.setdefault((pid, name), [])
        for index, (free_s, tid) in enumerate(lanes):
            if free_s <= item.begin_s:
                lanes[index] = (item.end_s, tid)
                return tid
        tid = 1 + sum(map(len, self._lanes.values()))
        lanes.append((item.end_s, tid))
        self._name("thread_name", pid, tid, name if len(lanes) == 1 else f"{name} ({len(lanes)})")
        return tid

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        self.lines.append(_json({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}))


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def gantt(path: Path, spans: Sequence[Span], messages: Sequence[Transfer], title: str = "") -> None:
    """A picture (its kind by the suffix: png, svg, pdf): each rank's stages, and below them what it receives."""
    try:
        figure_of = importlib.import_module("matplotlib.figure").Figure
        colours = importlib.import_module("matplotlib").colormaps["tab20"]
    except ImportError:
        raise TimelineError("the picture needs matplotlib: pip install matplotlib") from None
    ranks = sorted({span.rank for span in spans} | {m.receiver for m in messages})
    if not ranks:
        raise TimelineError("there is nothing to draw: no spans and no messages")
    names = list(dict.fromkeys([s.name for s in spans] + [m.name for m in messages]))
    figure = figure_of(figsize=(10, 1 + 0.5 * len(ranks)), layout="constrained")
    axes = figure.subplots()
    for name_number, name in enumerate(names):
        label: str | None = name
        for row, rank in enumerate(ranks):
            for items, low in (
                ([s for s in spans if s.rank == rank], row + 0.05),
                ([m for m in messages if m.receiver == rank], row + 0.5),
            ):
                bars = [(i.begin_s, i.end_s - i.begin_s) for i in items if i.name == name]
                if bars:
                    axes.broken_barh(bars, (low, 0.4), color=colours(name_number % 20), alpha=0.8, label=label)
                    label = None
    axes.set_yticks([row + 0.5 for row in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(title)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)
