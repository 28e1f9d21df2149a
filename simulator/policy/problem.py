"""One round of the ring as an optimisation problem: which widths, for how much time and variance.

A round has channels (sender, receiver); a channel has groups of messages that share a width. AdaQP,
section 4.2, eqs. 8-12:

    beta_k = (sum_v alpha_{k,v}^2) D (max - min)^2 / 6        variance of message k at b bits: beta_k / (2^b - 1)^2
    t(channel) = theta * bytes + gamma                        Z = the slowest channel of the round
    minimise lambda * variance + (1 - lambda) * Z             both normalised (front.py)

Shapes: M messages and G groups of a channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simulator.workload import Exchange, message_bytes

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]

WIDTHS = (0, 1, 2, 3, 4, 8, 16, 32)  # bits of an entry that a problem may allow
DEFAULT_BITS = (2, 4, 8)
# A dropped row reads as zeros. Entries spread evenly over [0, range] have a mean square of range^2 / 3,
# twice the range^2 / 6 in beta. It is a bias, not a variance: give another factor where more is known.
DROPPED_FACTOR = 2.0


class ProblemError(ValueError):
    """A problem that can't be posed, or a demand that no assignment meets: one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """Messages of one channel, sorted by beta and cut into groups.

    ``beta`` [G] is the sum over a group's own members, ``size`` [G] how many they are, ``group_of``
    [M] the group of each message in the order in which the messages were given.
    """

    beta: F64
    size: I64
    group_of: I64

    def per_message(self, bits: U8) -> U8:
        """[M] bits of each message, in the order in which they were given, from [G] bits."""
        return bits[self.group_of]


def grouped(beta: F64, group_size: int, *, descending: bool = True) -> Grouping:
    """Cut ``beta`` [M] into groups of ``group_size``, largest first unless told; the last may be short.

    Equal betas keep their order. A short last group counts its true size.
    """
    beta = np.asarray(beta, np.float64)
    if group_size < 1:
        raise ProblemError(f"group_size is {group_size}; a group has 1 message at least")
    if beta.ndim != 1 or not (np.isfinite(beta).all() and (beta >= 0).all()):
        raise ProblemError(
            "betas must be a list of finite numbers >= 0 (where coefficients are learned, take them as 1)"
        )
    order = np.argsort(-beta if descending else beta, kind="stable")
    starts = np.arange(0, len(beta), group_size)
    group_of = np.empty(len(beta), np.int64)
    group_of[order] = np.arange(len(beta)) // group_size
    return Grouping(
        beta=np.add.reduceat(beta[order], starts) if len(beta) else np.empty(0),
        size=np.minimum(len(beta) - starts, group_size),
        group_of=group_of,
    )


def message_beta(alpha_squared: F64, entries: int, range_squared: F64) -> F64:
    """[M] beta of messages: D (max - min)^2 / 6 times the sum of alpha^2 (not the square of their sum).

    Backward the receiver has summed already: alpha_squared is 1 there. AdaQP, eq. 8.
    """
    beta: F64 = alpha_squared * range_squared * (entries / 6)
    return beta


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Channel:
    """What one sender sends to one receiver: groups of rows of ``entries``, and what the wire costs."""

    groups: Grouping
    entries: int  # of a row that travels
    theta_s_per_byte: float
    gamma_s: float
    sender: int = 0
    receiver: int = 0

    def __post_init__(self) -> None:
        where = f"channel {self.sender} -> {self.receiver}"
        groups = self.groups
        if self.entries < 1:
            raise ProblemError(f"{where} has rows of {self.entries} entries; they have 1 at least")
        for name in ("theta_s_per_byte", "gamma_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ProblemError(f"{where} has {name} = {value}; it must be finite and >= 0")
        if groups.beta.shape != groups.size.shape or groups.beta.ndim != 1:
            raise ProblemError(f"{where} has {len(groups.beta)} betas for {len(groups.size)} sizes")
        if not (np.isfinite(groups.beta).all() and (groups.beta >= 0).all() and (groups.size >= 1).all()):
            raise ProblemError(f"{where} has a group whose beta is not a finite number >= 0, or that is empty")

    def bytes_at(self, bits: U8) -> int:
        """Bytes of the channel, metadata included, with [G] bits."""
        return int(self.groups.size @ message_bytes(self.entries, bits))

    def seconds_at(self, num_bytes: float | I64) -> F64:
        """theta * bytes + gamma, of one number or of an array; a channel without messages sends nothing."""
        busy = float(len(self.groups.size) > 0)
        return np.asarray(self.theta_s_per_byte * num_bytes + self.gamma_s, np.float64) * busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The widths worth giving on a channel: each next one costs more bytes and has less variance.

    Short rows round up to whole bytes, so that a wider code can be free; 32 bits are never worth more
    than 16, whose error is taken as none. ``bytes`` are a message's, ``factors`` multiply beta.
    """

    bits: tuple[int, ...]
    bytes: tuple[int, ...]
    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundProblem:
    """The channels that are busy at once; the round lasts as long as the slowest."""

    channels: tuple[Channel, ...]
    bits: tuple[int, ...] = DEFAULT_BITS
    dropped_factor: float = DROPPED_FACTOR  # variance of a row at 0 bits, in units of beta

    def __post_init__(self) -> None:
        allowed = ", ".join(map(str, WIDTHS))
        if not self.channels:
            raise ProblemError("a round has one channel at least")
        if not self.bits or list(self.bits) != sorted(set(self.bits)) or not set(self.bits) <= set(WIDTHS):
            raise ProblemError(f"bits are {self.bits}; they must rise and come out of {allowed}")
        if not (math.isfinite(self.dropped_factor) and self.dropped_factor >= 0):
            raise ProblemError(f"dropped_factor is {self.dropped_factor}; it must be finite and >= 0")

    def ladder(self, channel: Channel) -> Ladder:
        """The widths of this problem that are worth giving on ``channel``."""
        return _ladder(channel.entries, self.bits, self.dropped_factor)

    def factor(self, bits: int) -> float:
        """Variance of a row at this width, in units of its beta."""
        return variance_factor(bits, self.dropped_factor)

    def fill(self, step: int) -> tuple[U8, ...]:
        """Every group at the lowest (0) or highest (-1) width worth giving on its channel."""
        return tuple(np.full(len(c.groups.size), self.ladder(c).bits[step], np.uint8) for c in self.channels)

    def seconds(self, bits: Sequence[U8]) -> float:
        """Makespan of the round: the slowest channel."""
        return max(float(c.seconds_at(c.bytes_at(b))) for c, b in zip(self.channels, bits, strict=True))

    def variance(self, bits: Sequence[U8]) -> float:
        """Sum over channels and groups of beta * factor(bits); channels in any order give the same sum."""
        table = np.zeros(256)
        for width in WIDTHS:
            table[width] = self.factor(width)
        return math.fsum(float(c.groups.beta @ table[b]) for c, b in zip(self.channels, bits, strict=True))


def variance_factor(bits: int, dropped_factor: float = DROPPED_FACTOR) -> float:
    """1 / (2^b - 1)^2 for stochastic rounding; none from 16 bits on; ``dropped_factor`` at 0 bits."""
    if bits >= 16:
        return 0.0
    return float(1 / (2**bits - 1) ** 2) if bits else dropped_factor


@cache
def _ladder(entries: int, bits: tuple[int, ...], dropped_factor: float) -> Ladder:
    sizes = message_bytes(entries, np.array(bits, np.uint8)).tolist()
    kept: list[tuple[int, float, int]] = []
    factors = [variance_factor(b, dropped_factor) for b in bits]
    for size, factor, width in sorted(zip(sizes, factors, bits, strict=True)):
        if not kept or factor < kept[-1][1]:
            kept.append((size, factor, width))
    return Ladder(
        bits=tuple(width for _, _, width in kept),
        bytes=tuple(size for size, _, _ in kept),
        factors=tuple(factor for _, factor, _ in kept),
    )


def rounds_of(
    exchange: Exchange,
    theta_s_per_byte: F64,
    gamma_s: F64,
    group_size: int,
    *,
    bits: tuple[int, ...] = DEFAULT_BITS,
) -> list[RoundProblem]:
    """The N - 1 rounds of a recorded exchange: in round i rank r sends to (r + i) mod N.

    ``theta_s_per_byte`` and ``gamma_s`` are [N, N], row the sender. Rounds in which nothing travels are left
    out. Groups are cut over the messages in their recorded order (receiver after receiver, node after node).
    """
    ranks = len(exchange.rows)
    beta = message_beta(exchange.alpha_squared, exchange.row_entries, exchange.range_squared)
    ends = np.cumsum(exchange.rows.ravel()).reshape(ranks, ranks)
    rounds = []
    for step in range(1, ranks):
        channels = []
        for sender in range(ranks):
            receiver = (sender + step) % ranks
            count, end = int(exchange.rows[sender, receiver]), int(ends[sender, receiver])
            if count:
                channels.append(
                    Channel(
                        groups=grouped(beta[end - count : end], group_size),
                        entries=exchange.row_entries,
                        theta_s_per_byte=float(theta_s_per_byte[sender, receiver]),
                        gamma_s=float(gamma_s[sender, receiver]),
                        sender=sender,
                        receiver=receiver,
                    )
                )
        if channels:
            rounds.append(RoundProblem(channels=tuple(channels), bits=bits))
    return rounds
