"""Many choices of one workload at once: every lambda of a group size in one walk through the epoch.

What a channel's widths may be (bytes against variance) doesn't depend on the network: it is found once a group size,
and serves every bandwidth. A choice then is an index into every channel's list; messages never get their widths one by
one. The answers are those of assignment.tune, to rounding.

Shapes: K choices, N ranks, P points of a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.epoch import Leg, Load, ring, walk
from simulator.exchanges import problems_of
from simulator.policy import DEFAULT_BITS, RoundProblem, exact
from simulator.policy.exact import Profile
from simulator.policy.front import Corners
from simulator.wire import Wire
from simulator.workload import Exchange, Workload, message_bytes

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One choice, simulated."""

    method: str
    lam: float | None
    group_size: int | None
    mean_bits: float
    epoch_s: float
    waiting_s: float
    num_bytes: int
    variance_bound: float
    on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Channel:
    """A channel's list: P points, bytes rising, variance falling, and the bits of all its messages together."""

    sender: int
    receiver: int
    profile: Profile  # its seconds are bytes
    bits: I64  # [P]
    most_bytes: float  # all at the highest width
    least_variance: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lists:
    """Of one group size: of every exchange, its problems' channels."""

    group_size: int
    exchanges: tuple[tuple[tuple[_Channel, ...], ...], ...]


def lists(workload: Workload, group_size: int, *, at_once: bool = False) -> Lists:
    """What every channel may send. ``at_once``: one problem an exchange, instead of its rounds. ProblemError."""
    shape = (workload.ranks, workload.ranks)
    unit = PairCosts(theta_s_per_byte=np.ones(shape), gamma_s=np.zeros(shape))  # a second is a byte
    return Lists(
        group_size=group_size,
        exchanges=tuple(
            tuple(_channels(problem) for problem in problems_of(exchange, unit, group_size, at_once=at_once))
            for exchange in workload.exchanges
        ),
    )


def _channels(problem: RoundProblem) -> tuple[_Channel, ...]:
    found = []
    highest = problem.fill(-1)
    for index, channel in enumerate(problem.channels):
        profile = exact.profile(channel, problem.ladder(channel))
        alone = RoundProblem(channels=(channel,), bits=problem.bits)
        found.append(
            _Channel(
                sender=channel.sender,
                receiver=channel.receiver,
                profile=profile,
                bits=_total_bits(profile, channel.groups.size),
                most_bytes=float(channel.bytes_at(highest[index])),
                least_variance=alone.variance((highest[index],)),
            )
        )
    return tuple(found)


def _total_bits(profile: Profile, size: I64) -> I64:
    """[P] bits of an entry, summed over messages."""
    widths = np.array(profile.widths, np.int64)
    even = int(size[profile.order[0]]) if len(profile.order) else 0
    total = even * (widths[0] * len(profile.order) + profile.counts[:, : len(widths) - 1] @ np.diff(widths))
    if profile.odd is not None:
        total = total + size[profile.odd] * widths[profile.odd_step]
    return np.asarray(total, np.int64)


def adaptive(workload: Workload, found: Lists, wire: Wire, lambdas: Sequence[float], name: str) -> list[SweepPoint]:
    """Every lambda of one group size over a network of pairs."""
    assert isinstance(wire.network, PairCosts)
    count, n = len(lambdas), workload.ranks
    variance, bits = np.zeros(count), np.zeros(count, np.int64)
    legs = []
    for exchange, problems in zip(workload.exchanges, found.exchanges, strict=True):
        least, most = message_bytes(exchange.row_entries, np.array([DEFAULT_BITS[0], DEFAULT_BITS[-1]], np.uint8))
        costs, _ = wire.network.straight(exchange.rows * least, exchange.rows * most)
        num_bytes = np.zeros((count, n, n))
        for channels in problems:
            for channel, index in zip(channels, _chosen(channels, costs, lambdas), strict=True):
                num_bytes[:, channel.sender, channel.receiver] = channel.profile.seconds[index]
                variance += channel.profile.variance[index]
                bits += channel.bits[index]
        legs.append(replace(Leg.of(exchange), num_bytes=num_bytes))
    load = replace(Load.of(workload), legs=tuple(legs))
    messages = max(1, sum(int(exchange.rows.sum()) for exchange in workload.exchanges))
    epoch_s, waiting_s = _simulated(load, wire, count)
    total = sum((leg.num_bytes.sum(axis=(1, 2)) for leg in legs), np.zeros(count))
    return [
        SweepPoint(
            method=name,
            lam=lam,
            group_size=found.group_size,
            mean_bits=float(bits[k] / messages),
            epoch_s=float(epoch_s[k]),
            waiting_s=float(waiting_s[k]),
            num_bytes=round(float(total[k])),
            variance_bound=float(variance[k]),
        )
        for k, lam in enumerate(lambdas)
    ]


def _chosen(channels: Sequence[_Channel], costs: PairCosts, lambdas: Sequence[float]) -> list[I64]:
    """[K] the point of each channel, for every lambda: as exact.front and its at()."""
    profiles, most_s = [], []
    for channel in channels:
        theta, gamma = (float(of[channel.sender, channel.receiver]) for of in (costs.theta_s_per_byte, costs.gamma_s))
        profiles.append(replace(channel.profile, seconds=theta * channel.profile.seconds + gamma))
        most_s.append(theta * channel.most_bytes + gamma)
    seconds, variance = exact._merge(profiles)
    utopia = sum(channel.least_variance for channel in channels)
    corners = Corners(
        utopia_s=max(float(p.seconds[0]) for p in profiles),
        nadir_s=max(most_s),
        utopia_variance=utopia,
        nadir_variance=max(float(variance[0]), utopia),
    )
    budget = seconds[[int(np.argmin(corners.score(seconds, variance, lam))) for lam in lambdas]]
    return [np.searchsorted(profile.seconds, budget, "right") - 1 for profile in profiles]


def _simulated(load: Load, wire: Wire, count: int) -> tuple[F64, F64]:
    """[K] seconds of the epoch, and of them waited for, on average over ranks."""
    steps, end_s = walk(load, ring(wire))
    waiting = np.zeros(count)
    for step in steps:
        waiting += np.broadcast_to(step.decode - step.start - step.leg.central_s, (count, load.ranks)).mean(axis=-1)
    return np.broadcast_to(end_s, (count,)), waiting


def with_front(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Which of them no other one beats: as fast and as exact, better in one."""
    if not points:
        return []
    seconds = np.array([point.epoch_s for point in points])
    variance = np.array([point.variance_bound for point in points])
    order = np.lexsort((variance, seconds))
    best = np.minimum.accumulate(np.concatenate([[np.inf], variance[order][:-1]]))
    first = np.concatenate([[True], np.diff(seconds[order]) > 0])
    # within a group of equal seconds the least variance comes first: the others are beaten by it, unless equal
    group_best = variance[order][np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    before = best[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    kept = (variance[order] <= group_best) & (variance[order] < before)
    flags = np.empty(len(order), bool)
    flags[order] = kept
    return [replace(point, on_front=bool(flag)) for point, flag in zip(points, flags, strict=True)]


def bits_of(exchanges: Sequence[Exchange]) -> float:
    """Mean bits of an entry over all messages; 0 where there is none."""
    messages = sum(len(exchange.bits) for exchange in exchanges)
    return sum(float(exchange.bits.sum(dtype=np.float64)) for exchange in exchanges) / max(1, messages)
