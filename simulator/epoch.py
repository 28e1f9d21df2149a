"""How long a training epoch takes: a recorded workload over the costs of a network.

An epoch is layer 0's held products, then one exchange after the other (forward by layer, then backward), then
the sum of the weight gradients. On every rank, forward and backward being mirror images:

    forward    dense | encode | messages || central | decode | marginal
    backward   dense | marginal | encode | messages || central | decode

Ranks wait for each other only through messages and in the final sum. Where in the epoch a rank's dense
seconds fall is not recorded: they are spread evenly over its exchanges and its end.

Shapes: N ranks, any leading batch axes of the costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.events import RingRun, run_ring, run_shared
from simulator.maxplus import Semantics, ring_finish
from simulator.timeline import Span, Transfer, transfers
from simulator.topology import Topology
from simulator.workload import Exchange, Workload, message_bytes

F64 = NDArray[np.float64]
Links = Literal["shared", "apart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTime:
    """One exchange of a simulated epoch. Seconds; means over ranks but for ``flight_s``, the slowest rank's."""

    layer: int
    direction: Literal["forward", "backward"]
    num_bytes: int  # of all ranks
    flight_s: float  # from the first rank's start to the last one's end
    waiting_s: float  # of the messages, not hidden behind central
    hidden_s: float  # of the messages, behind central
    coding_s: float  # encode and decode
    product_s: float  # central and marginal


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTime:
    """A simulated training epoch."""

    epoch_s: float
    exchanges: tuple[ExchangeTime, ...]
    held_s: float
    dense_s: float
    weight_gradient_s: float
    num_bytes: int  # rows sent by all ranks

    @property
    def waiting_s(self) -> float:
        return sum(exchange.waiting_s for exchange in self.exchanges)

    @property
    def hidden_s(self) -> float:
        return sum(exchange.hidden_s for exchange in self.exchanges)


def simulate(
    workload: Workload,
    network: PairCosts | Topology,
    *,
    semantics: Semantics = "posted",
    links: Links = "apart",
    overlap: bool = True,
) -> EpochTime:
    """The epoch of a workload over a network: the costs of its pairs, or links that messages share fairly.

    ``links``, for costs of pairs: whether a rank's messages go one after another, or every pair has a link of its
    own. That matters for posted messages only: in the other semantics one goes at a time.
    """
    n = workload.ranks
    steps, end_s = walk(workload, network, semantics=semantics, links=links, overlap=overlap)
    return EpochTime(
        epoch_s=end_s,
        exchanges=tuple(_told(step) for step in steps),
        held_s=float(workload.held_s.mean()),
        dense_s=float(workload.dense_s.mean()),
        weight_gradient_s=workload.weight_gradient_s if n > 1 else 0.0,
        num_bytes=workload.epoch_bytes(),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One exchange on every rank's clock, [N] seconds each: when what begins."""

    exchange: Exchange
    dense: F64
    marginal: F64  # backward; forward it follows `decode`
    encode: F64
    start: F64  # of the messages, and of the central product
    ended: F64  # of the messages: all sent, all received
    decode: F64
    end: F64


def walk(
    workload: Workload, network: PairCosts | Topology, *, semantics: Semantics, links: Links, overlap: bool
) -> tuple[list[Step], float]:
    """Every exchange of an epoch, and the epoch's end. As ``simulate``, with the clocks shown."""
    clock = workload.held_s.copy()
    share = workload.dense_s / (len(workload.exchanges) + 1)
    steps = []
    for exchange in workload.exchanges:
        backward = exchange.direction == "backward"
        marginal = clock + share
        encode = marginal + exchange.marginal_s if backward else marginal
        start = encode + exchange.encode_s
        ended = flight(exchange, network, start, semantics, links)
        ready = np.maximum(ended, start + exchange.central_s) if overlap else ended + exchange.central_s
        end = ready + exchange.decode_s + (0.0 if backward else exchange.marginal_s)
        steps.append(
            Step(
                exchange=exchange,
                dense=clock,
                marginal=marginal,
                encode=encode,
                start=start,
                ended=ended,
                decode=ready,
                end=end,
            )
        )
        clock = end
    return steps, float((clock + share).max()) + (workload.weight_gradient_s if workload.ranks > 1 else 0.0)


def _told(step: Step) -> ExchangeTime:
    exchange = step.exchange
    waiting = step.decode - (step.start + exchange.central_s)
    return ExchangeTime(
        layer=exchange.layer,
        direction=exchange.direction,
        num_bytes=int(exchange.channel_bytes().sum()),
        flight_s=float(step.ended.max() - step.start.min()),
        waiting_s=float(waiting.mean()),
        hidden_s=float((step.ended - step.start - waiting).mean()),
        coding_s=float((exchange.encode_s + exchange.decode_s).mean()),
        product_s=float((exchange.central_s + exchange.marginal_s).mean()),
    )


def timeline(workload: Workload, network: PairCosts | Topology, **choices: Any) -> tuple[list[Span], list[Transfer]]:
    """Every rank's stages, and every message, of a simulated epoch. ``choices`` as for ``walk``."""
    steps, end_s = walk(workload, network, **choices)
    spans = [Span(rank=r, name="held products", begin_s=0.0, end_s=float(s)) for r, s in enumerate(workload.held_s)]
    messages: list[Transfer] = []
    for step in steps:
        exchange = step.exchange
        name = f"layer {exchange.layer} {exchange.direction}"
        decoded = step.decode + exchange.decode_s
        pieces = [
            ("dense", step.dense, step.marginal),
            ("marginal", step.marginal, step.encode),
            ("encode", step.encode, step.start),
            ("central", step.start, step.start + exchange.central_s),
            ("wait", step.start + exchange.central_s, step.decode),
            ("decode", step.decode, decoded),
            ("marginal", decoded, step.end),
        ]
        for stage, begin, end in pieces:
            spans += [
                Span(rank=r, name=stage, begin_s=float(b), end_s=float(e))
                for r, (b, e) in enumerate(zip(begin, end, strict=True))
                if e > b
            ]
        messages += transfers(_messages(exchange, network, step.start, choices), exchange.channel_bytes().T, name)
    last = steps[-1].end if steps else workload.held_s
    summed = end_s - (workload.weight_gradient_s if workload.ranks > 1 else 0.0)
    spans += [Span(rank=r, name="dense", begin_s=float(b), end_s=summed) for r, b in enumerate(last)]
    spans += [Span(rank=r, name="weight gradients", begin_s=summed, end_s=end_s) for r in range(workload.ranks)]
    return spans, messages


def _messages(exchange: Exchange, network: PairCosts | Topology, start: F64, choices: dict[str, Any]) -> RingRun:
    if isinstance(network, Topology):
        return run_shared(exchange.channel_bytes().T, start, choices["semantics"], network)
    ring = network.ring_costs(exchange.channel_bytes())
    if choices["semantics"] == "posted" and choices["links"] == "apart":
        begin = np.where(np.isfinite(ring), start[None, :], np.nan)
        finish = flight(exchange, network, start, "posted", "apart")
        return RingRun(finish_s=finish, begin_s=begin, end_s=begin + ring)
    return run_ring(ring, start, choices["semantics"])


def flight(exchange: Exchange, network: PairCosts | Topology, start: F64, semantics: Semantics, links: Links) -> F64:
    """When each rank has sent and received all of an exchange: [N], on the clock of ``start``."""
    if isinstance(network, Topology):
        return run_shared(exchange.channel_bytes().T, start, semantics, network).finish_s
    ring = network.ring_costs(exchange.channel_bytes())
    if semantics == "posted" and links == "apart":
        arrived = (ring + start[None, :]).max(axis=1, initial=-np.inf)  # by receiver, over senders
        sent = (ring + start[None, :]).max(axis=0, initial=-np.inf)
        apart: F64 = np.maximum(start, np.maximum(arrived, sent))
        return apart
    return ring_finish(ring, start, semantics)


def with_bits(workload: Workload, bits: int) -> Workload:
    """The same rows at another width, coding at the recorded seconds: 1, 2, 3, 4, 8, 16 or 32."""
    return replace(
        workload,
        exchanges=tuple(replace(e, bits=np.full(len(e.bits), bits, np.uint8)) for e in workload.exchanges),
    )


def variance_bound(workload: Workload) -> float:
    """Sum over messages of the variance that rounding adds to the aggregates (AdaQP, Theorems 1 and 3).

    alpha_squared * e * (max - min)^2 / 6 / (2^b - 1)^2 for each message of b <= 8 bits; learned coefficients (NaN)
    count as 1. It orders assignments; it is not the variance of a gradient.
    """
    total = 0.0
    for exchange in workload.exchanges:
        rounded = (exchange.bits > 0) & (exchange.bits <= 8)
        steps = 2.0 ** exchange.bits[rounded] - 1
        alpha = np.nan_to_num(exchange.alpha_squared[rounded], nan=1.0)
        total += float((alpha * exchange.range_squared[rounded] / steps**2).sum() * exchange.row_entries / 6)
    return total


def limit_s(workload: Workload, costs: PairCosts, bits: int = 2) -> float:
    """No assignment does better: the longer of compute alone and messages at ``bits`` alone, and the gradients.

    Compute: the slowest rank's. Messages: the slowest channel of each exchange, at its bandwidth.
    """
    compute = workload.held_s + workload.dense_s
    wire = 0.0
    for exchange in workload.exchanges:
        compute = compute + exchange.central_s + exchange.marginal_s
        size = int(message_bytes(exchange.row_entries, np.array([bits], np.uint8))[0])
        wire += float((costs.theta_s_per_byte * exchange.rows * size).max(initial=0.0))
    return max(float(compute.max()), wire) + (workload.weight_gradient_s if workload.ranks > 1 else 0.0)
