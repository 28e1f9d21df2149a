"""Widths chosen adaptively while training (AdaQP, section 4): trace, gather, solve, scatter, every period.

The first period sends 8 bits everywhere. At the end of each period the ranges of the rows that travelled in its last
epoch are gathered at rank 0, a policy of simulator/policy gives every group of messages its width, and all ranks
make new layouts. The object that is asked here is the one that `bitring simulate --policy` evaluates.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simulator.assignment import assign_workload
from simulator.cost import PairCosts
from simulator.machine import MachineError, find, measured
from simulator.policy import ProblemError, SolverError
from simulator.workload import Workload
from toolkit.comm.layout import Bits, Listing
from toolkit.comm.ledger import Direction
from toolkit.comm.world import MpiWorld, World, on_root
from toolkit.errors import UserError
from toolkit.plan import LayerStep
from toolkit.train.traced import RankRecord, RowKey, coefficients_received, exchange_of

if TYPE_CHECKING:
    from toolkit.train.trainer import Trainer

FIRST_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Agreed:
    """The widths of one exchange, on every rank: [M] by sender, receiver, message; rows [N, N]."""

    rows: NDArray[np.int64]
    bits: Bits

    def channel(self, sender: int, receiver: int) -> Bits:
        ends = np.cumsum(self.rows.ravel()).reshape(self.rows.shape)
        end, count = int(ends[sender, receiver]), int(self.rows[sender, receiver])
        return self.bits[end - count : end]


class Adaptive:
    """The widths in force (comm/widths.py), and what the next ones will be chosen from."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.number = 0  # of the assignment in force; 0: the first period
        self.agreed: dict[RowKey, Agreed] = {}
        self.costs: PairCosts | None = None  # at rank 0
        self.told: dict[str, Any] | None = None  # of the last assignment, for the record
        self._ranges: dict[RowKey, NDArray[np.float64]] = {}

    # comm/widths.py: Widths

    def period(self, epoch: int) -> int:
        return self.number

    def bits(self, listing: Listing, layer: int, direction: Direction, epoch: int) -> Bits:
        if (layer, direction) not in self.agreed:
            return np.full(len(listing.ids), FIRST_BITS, np.uint8)
        agreed, rank, peers = self.agreed[layer, direction], self._world.rank, range(self._world.size)
        sends = listing.lent == (direction == "forward")
        channels = [agreed.channel(rank, peer) if sends else agreed.channel(peer, rank) for peer in peers]
        return np.concatenate(channels)

    # comm/halo.py: RangeTrace

    def __call__(self, step: LayerStep, direction: Direction, ranges: Tensor) -> None:
        self._ranges[step.layer, direction] = ranges.double().square().numpy()

    def after_epoch(self, trainer: Trainer, epoch: int) -> None:
        """At the end of a period, the next assignment. Every rank calls it."""
        self.told = None
        if (epoch + 1) % trainer.config.method.period or self._world.size == 1:
            return
        begin = time.perf_counter()
        if self.number == 0:
            self._price(trainer)
        gathered = self._world.gather(self._record(trainer))

        def solve() -> tuple[dict[RowKey, Agreed], dict[str, Any]]:
            assert gathered is not None and self.costs is not None
            return _solve(trainer, gathered, self.costs)

        self.agreed, self.told = on_root(self._world, solve)
        self.number += 1
        self.told["assign_s"] = time.perf_counter() - begin

    def _price(self, trainer: Trainer) -> None:
        """What a byte and a message cost between every pair: described, or measured now."""
        if self.costs is not None:
            return
        name, world = trainer.config.method.machine, self._world
        if name:
            self.costs = on_root(world, lambda: _described(name, world.size))
        elif isinstance(world, MpiWorld):
            from toolkit.comm.calibrate import measure, sizes_between

            longest = max((max(way.out.bytes_by_peer) for way in _train_ways(trainer)), default=1)
            everyone = world.gather(longest)
            sizes = sizes_between(1000, world.broadcast(0 if everyone is None else max(everyone)))
            fits, hosts = measure(world.comm, sizes), world.gather(platform.node())
            self.costs = None if fits is None or hosts is None else measured(hosts, fits).pair_costs()
        else:
            raise UserError("this world has no messages to measure; name a machine (method.machine)")

    def _record(self, trainer: Trainer) -> RankRecord:
        engine = trainer.engine
        steps = [s for s in engine.plan.train if s.sends != "nothing" and engine.coded("train", s.layer)]
        routes = {step.layer: engine.routes["train", step.layer] for step in steps}
        return RankRecord(
            traced=dict(self._ranges),
            bits={key: np.full(len(ranges), FIRST_BITS, np.uint8) for key, ranges in self._ranges.items()},
            alphas=coefficients_received(trainer, steps),
            send_counts={layer: route.lent.counts for layer, route in routes.items()},
            receive_counts={layer: route.borrowed.counts for layer, route in routes.items()},
            seconds={},
        )

    # train/state.py

    def to_plain(self) -> dict[str, Any] | None:
        """As JSON values, at rank 0."""
        if self.costs is None:
            return None
        return {
            "number": self.number,
            "theta_s_per_byte": self.costs.theta_s_per_byte.tolist(),
            "gamma_s": self.costs.gamma_s.tolist(),
            "widths": [
                [layer, direction, agreed.rows.tolist(), agreed.bits.tolist()]
                for (layer, direction), agreed in self.agreed.items()
            ],
        }

    def take(self, plain: dict[str, Any] | None) -> None:
        """Go on from ``to_plain``, on every rank; with another number of ranks, from the first period."""
        if plain is None or len(plain["theta_s_per_byte"]) != self._world.size:
            return
        self.number = int(plain["number"])
        theta, gamma = (np.array(plain[name], np.float64) for name in ("theta_s_per_byte", "gamma_s"))
        self.costs = PairCosts(theta_s_per_byte=theta, gamma_s=gamma)
        self.agreed = {
            (layer, direction): Agreed(rows=np.array(rows, np.int64), bits=np.array(bits, np.uint8))
            for layer, direction, rows, bits in plain["widths"]
        }


def _train_ways(trainer: Trainer) -> list[Any]:
    return [way for (kind, _), (_, ways) in trainer.engine.ways.items() if kind == "train" for way in ways.values()]


def _described(name: str, ranks: int) -> PairCosts:
    try:
        found = find(name)
    except MachineError as error:
        raise UserError(f"method.machine: {error}") from None
    if found.ranks != ranks:
        raise UserError(f"method.machine {name} has {found.ranks} devices, and this job {ranks} ranks; name another")
    return found.pair_costs()


def _solve(
    trainer: Trainer, everyone: list[RankRecord], costs: PairCosts
) -> tuple[dict[RowKey, Agreed], dict[str, Any]]:
    """At rank 0: every exchange's widths, and what to record of them."""
    method, plan = trainer.config.method, trainer.engine.plan
    keys = list(everyone[0].traced)
    exchanges = tuple(exchange_of(everyone, plan.train[layer], direction) for layer, direction in keys)
    idle = np.zeros(costs.ranks)
    workload = Workload(
        ranks=costs.ranks, exchanges=exchanges, held_s=idle, dense_s=idle, weight_gradient_bytes=0,
        weight_gradient_s=0.0, transport="", graph="",
    )  # fmt: skip
    try:
        assigned = assign_workload(workload, costs, method.policy, lam=method.lam, group_size=method.group_size)
    except (ProblemError, SolverError) as error:
        raise UserError(f"method.policy {method.policy}: {error}") from None
    agreed = {
        key: Agreed(rows=exchange.rows, bits=exchange.bits)
        for key, exchange in zip(keys, assigned.workload.exchanges, strict=True)
    }
    told = {
        "widths": [
            {"layer": layer, "direction": direction, "messages": _histogram(agreed[layer, direction].bits)}
            for layer, direction in keys
        ],
        "rounds_s": assigned.rounds_s,
        "variance": assigned.variance,
        "gap": assigned.gap,
        "solve_s": assigned.solve_s,
    }
    return agreed, told


def _histogram(bits: Bits) -> dict[str, int]:
    widths, counts = np.unique(bits, return_counts=True)
    return {str(width): int(count) for width, count in zip(widths, counts, strict=True)}
