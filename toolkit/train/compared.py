"""Exchanges as the record tells them: what the costs say they take, and what they took, whole and round by round.

What a round's seconds are depends on the ring:

    barrier, rendezvous    from the end of the round before (the start, in the first) to the round's own end
    posted                 from posting to when the round and all before it are over: no round waits for another, and
                           a rank waits for them in order, so the last one's are the whole exchange's

A rank's first round holds its waiting for ranks that came late, under every ring. Both sides are told of the slowest
rank, round by round: under barrier and rendezvous rounds sum up to the exchange's seconds or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.maxplus import Semantics
from simulator.wire import Wire
from simulator.workload import Exchange
from toolkit.train.traced import RowKey

F64 = NDArray[np.float64]
RoundEnds = dict[RowKey, tuple[float, ...]]  # seconds from an exchange's start to each round's end, of one rank


def shorter(one: RoundEnds, other: RoundEnds) -> RoundEnds:
    """Of each exchange the rounds of the epoch in which the last one ended sooner."""
    return one | {key: min(one.get(key, ends), ends, key=lambda e: e[-1:]) for key, ends in other.items()}


def compare(
    exchanges: Sequence[Exchange], rounds: Sequence[RoundEnds], costs: PairCosts, semantics: Semantics
) -> list[dict[str, Any]]:
    """Of each exchange the slowest rank's seconds, predicted and measured; ``rounds`` are every rank's."""
    wire = Wire(network=costs, semantics=semantics)
    return [
        _told(exchange, [ends.get((exchange.layer, exchange.direction), ()) for ends in rounds], wire)
        for exchange in exchanges
    ]


def _told(exchange: Exchange, measured: Sequence[tuple[float, ...]], wire: Wire) -> dict[str, Any]:
    predicted = predicted_ends(exchange.channel_bytes(), wire)
    told: dict[str, Any] = {
        "layer": exchange.layer,
        "direction": exchange.direction,
        "predicted_s": float(predicted[-1].max()),
        "measured_s": float(exchange.flight_s.max(initial=0.0)),
        "num_bytes": int(exchange.channel_bytes().sum()),
        "rounds": [],
    }
    if all(measured):  # an alltoall doesn't tell its rounds
        pairs = zip(slowest(predicted, wire.semantics), slowest(np.array(measured).T, wire.semantics), strict=True)
        told["rounds"] = [
            {"round": number, "predicted_s": float(expected), "measured_s": float(took)}
            for number, (expected, took) in enumerate(pairs, 1)
        ]
    return told


def predicted_ends(num_bytes: NDArray[np.int64], wire: Wire) -> F64:
    """[N - 1, N] seconds until each rank has done with each round, every rank starting at once.

    ``num_bytes`` [N, N], row the sender. A round ends as if there were none after it: none of any ring waits for a
    later one.
    """
    n = len(num_bytes)
    sender, receiver = np.indices((n, n))
    round_of = (receiver - sender) % n
    rounds = np.arange(1, n)[:, None, None]
    return wire.flight(np.where(round_of <= rounds, num_bytes, 0), np.zeros((n - 1, n)))


def slowest(ends: F64, semantics: Semantics) -> F64:
    """[N - 1, N] ends -> [N - 1] seconds of each round, of the rank that takes longest (see above)."""
    seconds = ends if semantics == "posted" else np.diff(ends, axis=0, prepend=0.0)
    return np.asarray(seconds.max(axis=1))
