"""Epochs of every method, simulated: what each sends, when, and what it waits for. Training of most is to come.

| method         | messages of an epoch                                     | neutral setting            |
|----------------|----------------------------------------------------------|----------------------------|
| vanilla        | the plan's rows, unquantised                             |                            |
| quantised      | the plan's rows at few bits; an assignment every period  | 32 bits: vanilla           |
| pipelined      | the plan's rows, used ``staleness`` epochs later         | staleness 0: vanilla       |
| broadcast      | every rank's whole block to all ranks, block after block |                            |
| skip-broadcast | broadcast, some blocks skipped and their copies used     | nothing skipped: broadcast |
| gist           | hidden rows a ``parts``-th as wide; weights put together | parts 1: vanilla, and      |
|                | every ``local`` epochs                                   | putting weights together   |

Broadcasts (CAGNET, SANCUS) go down a binomial tree, as MPI's; rank r multiplies block i once it is there, so
nothing overlaps. Rows are as wide as the plan has them; whole blocks need no gathering and no placing.
Every epoch ends for all ranks at once, in the sum of the weight gradients.

Shapes: E epochs, N ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.epoch import EpochTime, Leg, Load, Meet, Step, ring, told, walk
from simulator.keyed import mix64
from simulator.stragglers import uniform
from simulator.wire import Wire
from simulator.workload import Workload, message_bytes

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
DRAWN_EPOCHS = 200  # whose mean is a steady epoch, where skipped blocks are drawn
LONGEST_TURN = 1000  # epochs: every one of a turn is simulated


class MethodError(ValueError):
    """A method that can't be simulated so: one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Epochs:
    """Consecutive epochs: how long each takes [E], and what one of them is made of, on average."""

    seconds: F64
    load: Load
    steps: list[Step]
    beside_s: float = 0.0  # of an epoch, beside its stages: assignments, weights put together

    def told(self) -> EpochTime:
        """The mean epoch."""
        return told(self.load, self.steps, float(self.seconds.mean()))


class Method(Protocol):
    """How epochs go under a method. ``epochs`` [E] are their numbers; ``device`` [E, N] slows ranks down."""

    def run(self, load: Load, wire: Wire, epochs: I64, device: F64 | None = None) -> Epochs: ...

    def steady(self, load: Load, wire: Wire) -> Epochs:
        """The undisturbed epochs of one turn: their mean is a steady epoch."""
        ...


def slowed_by(load: Load, device: F64 | None) -> Load:
    return load if device is None else load.slowed(device)


def _walked(load: Load, meet: Meet, epochs: I64, beside_s: float = 0.0) -> Epochs:
    steps, end_s = walk(load, meet)
    return Epochs(seconds=np.broadcast_to(end_s, epochs.shape) + beside_s, load=load, steps=steps, beside_s=beside_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Vanilla, and quantised: the load says which. ``assign_s`` every ``period`` epochs, spread over them."""

    overlap: bool = True
    assign_s: float = 0.0
    period: int = 50

    def __post_init__(self) -> None:
        require_at_least(1, period=self.period)
        require_at_least(0, assign_s=self.assign_s)

    def run(self, load: Load, wire: Wire, epochs: I64, device: F64 | None = None) -> Epochs:
        return _walked(slowed_by(load, device), ring(wire, self.overlap), epochs, self.assign_s / self.period)

    def steady(self, load: Load, wire: Wire) -> Epochs:
        return self.run(load, wire, np.arange(1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Broadcasts:
    """CAGNET, and SANCUS where blocks are skipped. ``block_bytes`` [exchanges, N] of every rank's whole block.

    ``share`` [exchanges, N, N]: of rank r's (row) remote product, what falls on block i. Skipped are, in exchanges of
    ``on``: with ``staleness`` s all epochs but every s + 1st (``turns``: rank after rank, not all at once); else a
    ``skip``-th of the blocks, drawn for each epoch, exchange and rank. Which ones must be agreed on where they are
    drawn: one small message up and one down the tree in each exchange.
    """

    block_bytes: I64
    share: F64
    on: str = "forward"
    staleness: int = 0
    turns: bool = False
    skip: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_within(0, LONGEST_TURN, staleness=self.staleness)
        if not 0 <= self.skip < 1:
            raise MethodError(f"skip is {self.skip}; give a share in [0, 1)")
        if self.skip and self.staleness:
            raise MethodError(f"skip {self.skip} and staleness {self.staleness} both say what is skipped; give one")
        if self.on not in ("forward", "backward", "both"):
            raise MethodError(f"on is {self.on!r}; give forward, backward or both")

    def run(self, load: Load, wire: Wire, epochs: I64, device: F64 | None = None) -> Epochs:
        slowed = slowed_by(load, device)
        none = np.zeros(load.ranks)
        legs = tuple(
            replace(
                leg,
                num_bytes=self._sent(number, leg, epochs),
                encode_s=none,
                decode_s=none,
                central_s=leg.central_s + leg.marginal_s,
                marginal_s=none,
            )
            for number, leg in enumerate(slowed.legs)
        )
        blocks = [leg.central_s[..., None] * self.share[n] for n, leg in enumerate(legs)]  # [.., N, N] row the rank
        return _walked(replace(slowed, legs=legs), _InTurn(wire, blocks, self._agree_s(wire)).meet, epochs)

    def steady(self, load: Load, wire: Wire) -> Epochs:
        return self.run(load, wire, np.arange(DRAWN_EPOCHS if self.skip else self.staleness + 1))

    def _sent(self, number: int, leg: Leg, epochs: I64) -> F64:
        """[E, N, N] bytes of each block to every other rank, 0 where it is skipped."""
        ranks = np.arange(self.block_bytes.shape[1])
        sent = np.ones((len(epochs), len(ranks)), bool)
        if self.on in (leg.direction, "both"):
            if self.skip:
                key = mix64(self.seed, 0x5C, number)
                sent = uniform(key, ranks[None, :], epochs[:, None]) >= self.skip
            elif self.staleness:
                turn = epochs[:, None] + (ranks[None, :] if self.turns else 0)
                sent = np.broadcast_to(turn % (self.staleness + 1) == 0, sent.shape)
        blocks = np.where(sent, self.block_bytes[number], 0).astype(np.float64)
        return blocks[:, :, None] * ~np.eye(len(ranks), dtype=bool)

    def _agree_s(self, wire: Wire) -> float:
        n = self.block_bytes.shape[1]
        if not self.skip or n == 1:
            return 0.0
        one = _costs(wire).seconds(np.full((n, n), math.ceil(n / 8))).max()
        return float(2 * math.ceil(math.log2(n)) * one)


class _InTurn:
    """Block after block: down the tree, then multiplied by everyone."""

    def __init__(self, wire: Wire, blocks: Sequence[F64], agree_s: float) -> None:
        self.wire, self.blocks, self.agree_s, self.number = wire, blocks, agree_s, 0

    def meet(self, leg: Leg, start: F64) -> tuple[F64, F64]:
        blocks = self.blocks[self.number]
        self.number += 1
        clock = start
        if self.agree_s:  # a rank hears of the others when all have spoken
            clock = np.broadcast_to(start.max(axis=-1, keepdims=True) + self.agree_s, start.shape)
        for root in range(start.shape[-1]):
            clock = broadcast(self.wire, leg.num_bytes[..., root, :].max(axis=-1), root, clock) + blocks[..., root]
        return clock - leg.central_s, clock  # products stand between messages: none of them hides one


def broadcast(wire: Wire, num_bytes: F64, root: int, start: F64) -> F64:
    """When each rank has block ``root`` and has sent it on: [..., N]. A binomial tree, root first.

    At N = 8 and root 0:  0 -> 4  |  0 -> 2, 4 -> 6  |  0 -> 1, 2 -> 3, 4 -> 5, 6 -> 7
    """
    n, clock = start.shape[-1], start
    span = 1 << max(0, n - 1).bit_length()
    while span > 1:
        level = np.zeros((n, n), bool)
        for place in range(0, n, span):
            if place + span // 2 < n:
                level[(root + place) % n, (root + place + span // 2) % n] = True
        clock = wire.flight(np.asarray(num_bytes)[..., None, None] * level, clock)
        span //= 2
    return clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Gist:
    """GIST: ``parts`` sub-GCNs train side by side, each on as many ranks as the workload has; this is one of them.

    The load is that of ``narrowed``. Every ``local`` epochs the weights' blocks go to a common place and back.
    """

    parts: int = 2
    local: int = 5
    weight_bytes: int
    overlap: bool = True

    def __post_init__(self) -> None:
        require_at_least(1, parts=self.parts)
        require_within(1, LONGEST_TURN, local=self.local)

    def run(self, load: Load, wire: Wire, epochs: I64, device: F64 | None = None) -> Epochs:
        found = _walked(slowed_by(load, device), ring(wire, self.overlap), epochs)
        syncs = (epochs + 1) % self.local == 0
        sync_s = self.sync_s(wire)
        return replace(found, seconds=found.seconds + sync_s * syncs, beside_s=sync_s / self.local)

    def steady(self, load: Load, wire: Wire) -> Epochs:
        return self.run(load, wire, np.arange(self.local))

    def sync_s(self, wire: Wire) -> float:
        """Once there and back, over the slowest pair."""
        costs = _costs(wire)
        block = np.full((costs.ranks, costs.ranks), self.weight_bytes / self.parts)
        return float(2 * costs.seconds(block).max(initial=0.0))


def narrowed(workload: Workload, parts: int, outputs: int = 0) -> Workload:
    """A workload with the hidden widths of one of ``parts`` sub-GCNs, rounded up.

    Rows of ``outputs`` entries are the last layer's outputs, which are not split. Products and coding take as much less
    time as rows have fewer entries; dense work a ``parts``-th (between hidden layers it is less). GIST, section 3.
    """

    def narrow(entries: int) -> int:
        return entries if entries == outputs else -(-entries // parts)

    exchanges = []
    for e in workload.exchanges:
        entries = narrow(e.row_entries)
        shrinks = {
            name: getattr(e, name) * (entries / e.row_entries)
            for name in ("encode_s", "central_s", "decode_s", "marginal_s")
        }
        exchanges.append(replace(e, row_entries=entries, **shrinks))
    return replace(
        workload,
        exchanges=tuple(exchanges),
        dense_s=workload.dense_s / parts,
        held_s=workload.held_s / parts,
        weight_gradient_s=workload.weight_gradient_s / parts,
    )


def blocks_of(workload: Workload, nodes: int = 0) -> tuple[I64, F64]:
    """``block_bytes`` and ``share`` of a workload's broadcasts, in float32.

    ``nodes``: of the graph, where the workload doesn't know what ranks own; taken as evenly spread. MethodError.
    """
    require_at_least(0, nodes=nodes)
    n = workload.ranks
    inner = workload.inner
    if inner is None and not nodes:
        raise MethodError("this workload does not know how many nodes its ranks own: give nodes, of the whole graph")
    owned = np.full(n, -(-nodes // n)) if inner is None else inner
    found, shares = [], []
    for e in workload.exchanges:
        found.append(owned * int(message_bytes(e.row_entries, np.array([32], np.uint8))[0]))
        received = e.rows.T.astype(np.float64)  # row the multiplying rank
        total = e.central_s + e.marginal_s
        remote = received / np.maximum(received.sum(axis=1, keepdims=True), 1) * e.marginal_s[:, None]
        product = remote + np.diag(e.central_s)
        short = total - product.sum(axis=1)  # of a rank with a remote product and no rows: at its own block
        product += np.diag(short)
        shares.append(product / np.where(total > 0, total, 1.0)[:, None])
    shape = (len(workload.exchanges), n)
    return np.array(found, np.int64).reshape(shape), np.array(shares).reshape(*shape, n)


def _costs(wire: Wire) -> PairCosts:
    return wire.network if isinstance(wire.network, PairCosts) else wire.network.pair_costs()


def require_at_least(least: int, **values: float) -> None:
    for name, value in values.items():
        if not least <= value < math.inf:
            raise MethodError(f"{name} is {value}; give a number >= {least}")


def require_within(least: int, most: int, **values: float) -> None:
    require_at_least(least, **values)
    for name, value in values.items():
        if value > most:
            raise MethodError(f"{name} is {value}; give a number <= {most}")
