"""How long a training epoch takes: a recorded workload over the costs of a network.

An epoch is layer 0's held products, then one exchange after the other (forward by layer, then backward), then
the sum of the weight gradients. On every rank, forward and backward being mirror images:

    forward    dense | encode | messages || central | decode | marginal
    backward   dense | marginal | encode | messages || central | decode

Ranks wait for each other only through messages and in the final sum. Where in the epoch a rank's dense
seconds fall is not recorded: they are spread evenly over its exchanges and its end.

Shapes: N ranks, any leading batch axes of bytes, seconds and costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.maxplus import Semantics
from simulator.topology import Topology
from simulator.wire import Links as Links
from simulator.wire import Wire
from simulator.workload import Exchange, Workload, message_bytes

F64 = NDArray[np.float64]
STAGES = ("encode_s", "central_s", "decode_s", "marginal_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leg:
    """One exchange as far as time is concerned: bytes instead of messages. Seconds [..., N]."""

    layer: int
    direction: Literal["forward", "backward"]
    num_bytes: NDArray[np.int64] | F64  # [..., N, N] row the sender
    encode_s: F64
    central_s: F64
    decode_s: F64
    marginal_s: F64

    @staticmethod
    def of(exchange: Exchange) -> Leg:
        return Leg(
            layer=exchange.layer,
            direction=exchange.direction,
            num_bytes=exchange.channel_bytes(),
            **{name: getattr(exchange, name) for name in STAGES},
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """A workload as far as time is concerned. Seconds [..., N]."""

    legs: tuple[Leg, ...]
    held_s: F64
    dense_s: F64
    weight_gradient_s: float  # 0 where there is one rank alone

    @staticmethod
    def of(workload: Workload) -> Load:
        return Load(
            legs=tuple(map(Leg.of, workload.exchanges)),
            held_s=workload.held_s,
            dense_s=workload.dense_s,
            weight_gradient_s=workload.weight_gradient_s if workload.ranks > 1 else 0.0,
        )

    @property
    def ranks(self) -> int:
        return int(self.held_s.shape[-1])

    def slowed(self, factors: F64) -> Load:
        """Every rank's computing times its factor: [..., N]."""
        legs = tuple(replace(leg, **{name: getattr(leg, name) * factors for name in STAGES}) for leg in self.legs)
        return replace(self, legs=legs, held_s=self.held_s * factors, dense_s=self.dense_s * factors)


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

    ``links``: see ``Wire``.
    """
    load = Load.of(workload)
    steps, end_s = walk(load, ring(Wire(network=network, semantics=semantics, links=links), overlap))
    return told(load, steps, float(end_s))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One exchange on every rank's clock, [..., N] seconds each: when what begins."""

    leg: Leg
    dense: F64
    marginal: F64  # backward; forward it follows `decode`
    encode: F64
    start: F64  # of the messages, and of the central product
    ended: F64  # of the messages: all sent, all received
    decode: F64
    end: F64


Meet = Callable[[Leg, F64], tuple[F64, F64]]
"""What ranks do that are ready at [..., N]: when their messages have ended, and when they decode."""


def ring(wire: Wire, overlap: bool = True) -> Meet:
    """Messages fly while the central product goes on, or before it."""

    def meet(leg: Leg, start: F64) -> tuple[F64, F64]:
        ended = wire.flight(leg.num_bytes, start)
        return ended, np.maximum(ended, start + leg.central_s) if overlap else ended + leg.central_s

    return meet


def walk(load: Load, meet: Meet) -> tuple[list[Step], F64]:
    """Every exchange of an epoch, and when the epoch ends: [...]."""
    clock = load.held_s
    share = load.dense_s / (len(load.legs) + 1)
    steps = []
    for leg in load.legs:
        marginal = clock + share
        encode = marginal + leg.marginal_s if leg.direction == "backward" else marginal
        start = encode + leg.encode_s
        ended, ready = meet(leg, start)
        end = ready + leg.decode_s + (0.0 if leg.direction == "backward" else leg.marginal_s)
        steps.append(
            Step(
                leg=leg,
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
    return steps, (clock + share).max(axis=-1) + load.weight_gradient_s


def told(load: Load, steps: list[Step], epoch_s: float) -> EpochTime:
    """The stages of an epoch; over several, their means."""
    exchanges = tuple(map(_told, steps))
    return EpochTime(
        epoch_s=epoch_s,
        exchanges=exchanges,
        held_s=float(load.held_s.mean()),
        dense_s=float(load.dense_s.mean()),
        weight_gradient_s=load.weight_gradient_s,
        num_bytes=sum(exchange.num_bytes for exchange in exchanges),
    )


def _told(step: Step) -> ExchangeTime:
    leg = step.leg
    waiting = step.decode - (step.start + leg.central_s)
    return ExchangeTime(
        layer=leg.layer,
        direction=leg.direction,
        num_bytes=round(float(leg.num_bytes.sum(axis=(-2, -1)).mean())),
        flight_s=float((step.ended.max(axis=-1) - step.start.min(axis=-1)).mean()),
        waiting_s=float(waiting.mean()),
        hidden_s=float((step.ended - step.start - waiting).mean()),
        coding_s=float((leg.encode_s + leg.decode_s).mean()),
        product_s=float((leg.central_s + leg.marginal_s).mean()),
    )


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
    return sum(map(exchange_variance_bound, workload.exchanges), 0.0)


def exchange_variance_bound(exchange: Exchange) -> float:
    """The part of one exchange."""
    rounded = (exchange.bits > 0) & (exchange.bits <= 8)
    steps = 2.0 ** exchange.bits[rounded] - 1
    alpha = np.nan_to_num(exchange.alpha_squared[rounded], nan=1.0)
    return float((alpha * exchange.range_squared[rounded] / steps**2).sum() * exchange.row_entries / 6)


def limit_s(workload: Workload, costs: PairCosts, bits: int = 2) -> float:
    """No assignment does better: the longer of compute alone and messages at ``bits`` alone, and the gradients.

    Compute: the slowest rank's. Messages: one exchange after the other, each message at the bandwidth of its pair
    and nothing else, no message waiting for another; ranks wait for their own messages only.
    """
    compute = workload.held_s + workload.dense_s
    theta = costs.theta_s_per_byte
    if costs.short is not None:
        theta = np.minimum(theta, costs.short.theta_s_per_byte)
    wire = Wire(network=PairCosts(theta_s_per_byte=theta, gamma_s=np.zeros_like(theta)))
    clock = np.zeros(workload.ranks)
    for exchange in workload.exchanges:
        compute = compute + exchange.central_s + exchange.marginal_s
        size = int(message_bytes(exchange.row_entries, np.array([bits], np.uint8))[0])
        clock = wire.flight(exchange.rows * size, clock)
    return float(max(compute.max(), clock.max())) + (workload.weight_gradient_s if workload.ranks > 1 else 0.0)


def flight(exchange: Exchange, network: PairCosts | Topology, start: F64, semantics: Semantics, links: Links) -> F64:
    """When each rank has sent and received all of an exchange: [N], on the clock of ``start``. See ``Wire``."""
    return Wire(network=network, semantics=semantics, links=links).flight(exchange.channel_bytes(), start)
