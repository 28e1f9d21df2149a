"""Which part of a graph goes to which rank: the numbering under which the rings of an epoch end soonest.

In round i rank r sends to r + i, so the numbers decide which messages go side by side; and where links differ, which
messages take which link. A numbering is ``rank_of`` [N]: part p goes to rank rank_of[p]. It is judged by the sum over
the exchanges of the ring's makespan, all ranks starting at once: messages alone, no computation beside them.

Few parts: every numbering. More: swaps of two parts, for as long as one helps, from the numbers as they are and from
keyed random ones; so the same call gives the same answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.cost import CostError
from simulator.keyed import mix64, mix_array
from simulator.topology import Topology
from simulator.wire import Wire
from simulator.workload import Exchange, Workload

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Numberings = NDArray[np.intp]  # [B, N], each the *part* on every rank
Say = Callable[[int, int], None]  # numberings judged so far, and at most

BLOCK = 1 << 21  # entries of the cost matrices that are judged at once: 16 MB
# Numberings that are all tried, and messages that a local search may simulate: some seconds of the engine in charge
ALL_OF = {"pairs": math.factorial(7), "shared": math.factorial(5)}
MESSAGES = {"pairs": 1 << 30, "shared": 1 << 17}
GAIN = 1e-12  # relative: what is less is a rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judge:
    """Bytes of each exchange [N, N] (row the sender), by part, on a wire: what a numbering is worth."""

    num_bytes: tuple[I64, ...]
    wire: Wire

    def __post_init__(self) -> None:
        n = self.wire.network.ranks
        for sizes in self.num_bytes:
            if sizes.shape != (n, n):
                raise CostError(f"the messages are {sizes.shape[0]} x {sizes.shape[-1]}, the network has {n} ranks")

    @property
    def ranks(self) -> int:
        return self.wire.network.ranks

    @property
    def engine(self) -> Literal["pairs", "shared"]:
        return "shared" if isinstance(self.wire.network, Topology) else "pairs"

    def at_once(self) -> int:
        """Numberings that seconds() takes at once in about 16 MB a matrix."""
        return max(1, BLOCK // self.ranks**2) if self.engine == "pairs" else 1

    def seconds(self, part_on: Numberings) -> F64:
        """[B] summed makespans, where rank r holds part ``part_on[b, r]``."""
        start, total = np.zeros(self.ranks), np.zeros(len(part_on))
        for sizes in self.num_bytes:
            total += self.wire.flight(sizes[part_on[:, :, None], part_on[:, None, :]], start).max(axis=-1)
        return total


def judge_of(workload: Workload, wire: Wire) -> Judge:
    """The judge of a workload's own exchanges, at the widths in it."""
    return Judge(num_bytes=tuple(exchange.channel_bytes() for exchange in workload.exchanges), wire=wire)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The best numbering found. ``how``: all numberings were tried, no swap helps, or the evaluations were used up."""

    rank_of: I64  # [N] of each part
    seconds: float
    identity_s: float  # with the numbers as they were
    evaluations: int
    how: Literal["exhaustive", "local optimum", "evaluations used up"]

    @property
    def saved_s(self) -> float:
        return self.identity_s - self.seconds


def place(
    judge: Judge, *, restarts: int = 8, key: int = 0, evaluations: int | None = None, say: Say | None = None
) -> Placement:
    """The best numbering found: exhaustively up to 7 ranks (5 where links are shared), else by swaps.

    ``restarts``: starts of the local search, the first from the numbers as they are. ``evaluations``: numberings it
    may judge (default: some seconds' worth). The answer is never slower than the numbers as they are.
    """
    if restarts < 1 or (evaluations is not None and evaluations < 1):
        raise CostError(f"a search needs a start and an evaluation at least, not {restarts} and {evaluations}")
    if math.factorial(judge.ranks) <= ALL_OF[judge.engine]:
        return _every(judge, say)
    if evaluations is None:
        evaluations = max(2, MESSAGES[judge.engine] // (judge.ranks**2 * max(1, len(judge.num_bytes))))
    return _swaps(judge, restarts, key, evaluations, say)


def place_seeds(judges: Sequence[Judge], **choices: Any) -> tuple[int, tuple[Placement, ...]]:
    """Several partitions of one graph (METIS's seeds), each placed; first: the index of the fastest."""
    if not judges:
        raise CostError("there is no partition to choose from")
    found = tuple(place(judge, **choices) for judge in judges)
    return min(range(len(found)), key=lambda i: found[i].seconds), found


def _every(judge: Judge, say: Say | None) -> Placement:
    orders = itertools.permutations(range(judge.ranks))  # the first is the numbers as they are
    best, best_s, identity_s, count = np.arange(judge.ranks), 0.0, 0.0, 0
    while block := list(itertools.islice(orders, judge.at_once())):
        numberings = np.array(block, np.intp)
        seconds = judge.seconds(numberings)
        if count == 0:
            best_s = identity_s = float(seconds[0])
        count += len(block)
        index = int(seconds.argmin())
        if seconds[index] < best_s * (1 - GAIN):
            best, best_s = numberings[index], float(seconds[index])
        if say:
            say(count, math.factorial(judge.ranks))
    return _placement(best, best_s, identity_s, count, "exhaustive")


def _swaps(judge: Judge, restarts: int, key: int, most: int, say: Say | None) -> Placement:
    n = judge.ranks
    best = np.arange(n)
    best_s = identity_s = float(judge.seconds(best[None, :])[0])
    count, how = 1, "local optimum"
    for restart in range(restarts):
        order, seconds = np.arange(n), identity_s
        if restart:
            order = _shuffled(np.arange(n), mix64(key, restart))
            seconds = float(judge.seconds(order[None, :])[0])
            count += 1
        improved = True
        while improved and count < most:
            improved = False
            for block in _neighbours(order, mix64(key, restart, count), min(judge.at_once(), most - count)):
                found = judge.seconds(block)
                count += len(block)
                if say:
                    say(min(count, most), most)
                index = int(found.argmin())
                improved = bool(found[index] < seconds * (1 - GAIN))
                if improved:
                    order, seconds = block[index], float(found[index])
                if improved or count >= most:
                    break
        if seconds < best_s * (1 - GAIN):
            best, best_s = order, seconds
        if count >= most:
            how = "evaluations used up"
            break
    return _placement(best, best_s, identity_s, count, how)


def _neighbours(order: Numberings, key: int, at_once: int) -> Iterator[Numberings]:
    """Every swap of two, in a keyed order, so many at a time."""
    first, second = np.triu_indices(len(order), 1)
    turn = _shuffled(np.arange(len(first)), key)
    for begin in range(0, len(turn), at_once):
        pairs = turn[begin : begin + at_once]
        block = np.tile(order, (len(pairs), 1))
        row = np.arange(len(pairs))
        block[row, first[pairs]], block[row, second[pairs]] = order[second[pairs]], order[first[pairs]]
        yield block


def _shuffled(values: NDArray[np.intp], key: int) -> NDArray[np.intp]:
    words = mix_array(np.arange(len(values), dtype=np.uint64) ^ np.uint64(key))
    return values[np.argsort(words, kind="stable")]


def _placement(part_on: Numberings, seconds: float, identity_s: float, count: int, how: Any) -> Placement:
    rank_of = np.argsort(part_on).astype(np.int64)
    return Placement(rank_of=rank_of, seconds=seconds, identity_s=identity_s, evaluations=count, how=how)


# Giving a workload its new numbers

Numbered = TypeVar("Numbered", Exchange, Workload)


def renumbered(workload: Workload, rank_of: I64) -> Workload:
    """The same epoch with part p on rank ``rank_of[p]``: its messages, and its seconds, go with it."""
    rank_of = np.asarray(rank_of)
    if sorted(rank_of.tolist()) != list(range(workload.ranks)):
        raise CostError(f"a numbering of {workload.ranks} ranks has each of them once, not {rank_of.tolist()}")
    part_on = np.argsort(rank_of)
    moved = _with_seconds(workload, part_on)
    inner = None if workload.inner is None else workload.inner[part_on]
    return replace(moved, inner=inner, exchanges=tuple(_exchange(exchange, part_on) for exchange in workload.exchanges))


def _exchange(exchange: Exchange, part_on: NDArray[np.intp]) -> Exchange:
    """Messages stay ordered by sender, then receiver, then node: channels move as wholes."""
    n = len(exchange.rows)
    counts = exchange.rows.ravel()
    rows = exchange.rows[np.ix_(part_on, part_on)]
    old_channel = (part_on[:, None] * n + part_on[None, :]).ravel()
    new_counts = counts[old_channel]
    old_begin, new_begin = (np.cumsum(c) - c for c in (counts, new_counts))
    message = np.repeat(old_begin[old_channel] - new_begin, new_counts) + np.arange(int(counts.sum()))
    return replace(
        _with_seconds(exchange, part_on),
        rows=rows,
        bits=exchange.bits[message],
        range_squared=exchange.range_squared[message],
        alpha_squared=exchange.alpha_squared[message],
    )


def _with_seconds(what: Numbered, part_on: NDArray[np.intp]) -> Numbered:
    """Every array of one number a rank, whose name ends in _s."""
    values = ((entry.name, getattr(what, entry.name)) for entry in fields(what))
    changes: dict[str, Any] = {
        name: value[part_on] for name, value in values if name.endswith("_s") and isinstance(value, np.ndarray)
    }
    return replace(what, **changes)
