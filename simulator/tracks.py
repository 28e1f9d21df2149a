"""What every rank and every link does in a simulated epoch, as the tracks of a timeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.epoch import Load, Step, ring, walk
from simulator.maxplus import Semantics
from simulator.timeline import Span, Transfer, transfers
from simulator.topology import Topology
from simulator.wire import Links, Wire
from simulator.workload import Exchange, Workload

F64 = NDArray[np.float64]


def timeline(
    workload: Workload,
    network: PairCosts | Topology,
    *,
    semantics: Semantics = "posted",
    links: Links = "apart",
    overlap: bool = True,
) -> tuple[list[Span], list[Transfer]]:
    """Every rank's stages, and every message, of a simulated epoch: choices as for ``epoch.simulate``.

    A rank's stages follow one another without gaps from 0 to the epoch's end.
    """
    wire, load = Wire(network=network, semantics=semantics, links=links), Load.of(workload)
    steps, end_s = walk(load, ring(wire, overlap))
    messages: list[Transfer] = []
    for exchange, step in zip(workload.exchanges, steps, strict=True):
        name = f"layer {exchange.layer} {exchange.direction}"
        run = wire.run(step.leg.num_bytes, step.start)
        messages += transfers(run, np.asarray(step.leg.num_bytes).T, name, mean_bits(exchange).T)
    return _spans(load, steps, float(end_s), overlap), messages


def mean_bits(exchange: Exchange) -> F64:
    """[N, N] bits of an entry on each channel, over its messages; 0 where there is none."""
    ends = np.repeat(np.arange(exchange.rows.size), exchange.rows.ravel())
    total = np.bincount(ends, exchange.bits.astype(np.float64), exchange.rows.size).reshape(exchange.rows.shape)
    return total / np.maximum(exchange.rows, 1)


def _spans(load: Load, steps: list[Step], end_s: float, overlap: bool) -> list[Span]:
    found: list[Span] = []

    def add(name: str, begin: F64, end: F64) -> None:
        for rank, (b, e) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
            if e > b:
                found.append(Span(rank=rank, name=name, begin_s=b, end_s=e))

    add("held products", np.zeros(load.ranks), load.held_s)
    clock = load.held_s
    for step in steps:
        decoded = step.decode + step.leg.decode_s
        add("dense", step.dense, step.marginal)
        add("marginal", step.marginal, step.encode)
        add("encode", step.encode, step.start)
        if overlap:
            local = step.start + step.leg.central_s
            add("central", step.start, local)
            add("wait", local, step.decode)
        else:
            add("wait", step.start, step.ended)
            add("central", step.ended, step.decode)
        add("decode", step.decode, decoded)
        add("marginal", decoded, step.end)
        clock = step.end
    own = clock + load.dense_s / (len(load.legs) + 1)
    summed = np.full(load.ranks, own.max())
    add("dense", clock, own)
    add("wait", own, summed)
    add("weight gradients", summed, np.full(load.ranks, end_s))
    return found
