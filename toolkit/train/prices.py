"""What a byte and a message cost between every pair of ranks: measured at the start, held against the run's exchanges.

What a run can tell of them is little. An exchange is over when its slowest channel is, and its seconds include
waiting for ranks that came late: pairs can't be told apart. One number can: by which factor exchanges take longer than
the costs say, the median over exchanges and ranks of the least seconds in a period over the predicted ones. The
factor scales all costs. Where it drifts, every pair is measured anew.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator import machine
from simulator.cost import PairCosts
from simulator.epoch import flight
from simulator.machine import Machine, MachineError
from simulator.maxplus import Semantics
from simulator.workload import Exchange
from toolkit import config as configs
from toolkit.comm.ledger import Direction, StageKey
from toolkit.comm.world import MpiWorld, World, on_root
from toolkit.errors import UserError
from toolkit.plan import LayerStep

if TYPE_CHECKING:
    from toolkit.train.trainer import Trainer

F64 = NDArray[np.float64]
NARROWEST, WIDEST = 2, 8  # bits that a policy gives
MEASURE_SHARE = 0.05  # of the time since the last measurement that another one may take
LEAST_BYTES = 1000  # measured from here at least: below, a message costs its latency


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """The costs in force, at rank 0. ``seconds``: what measuring took; 0: ``method.machine`` describes them.

    ``factor``: by which the run's exchanges take longer than the machine says; ``reference``: the first one after a
    measurement. Both None before.
    """

    machine: Machine
    seconds: float
    factor: float | None = None
    reference: float | None = None

    @property
    def measured(self) -> bool:
        return self.seconds > 0

    def costs(self) -> PairCosts:
        """Of every pair; measured ones scaled by the factor, described ones as they are: so are their widths."""
        base = self.machine.pair_costs()
        return base if self.factor is None or not self.measured else scaled(base, self.factor)

    def drift(self) -> float:
        """By which share exchanges take longer than in the first period after the measurement."""
        return 0.0 if self.factor is None or self.reference is None else self.factor / self.reference - 1

    def affordable(self, since_s: float) -> bool:
        """Whether another measurement is a small part of the seconds since the last one."""
        return self.measured and self.seconds <= MEASURE_SHARE * since_s

    def observed(self, factor: float | None) -> Prices:
        """After another period; None: nothing travelled."""
        if factor is None:
            return self
        return replace(self, factor=factor, reference=self.reference or factor)

    def to_plain(self) -> dict[str, Any]:
        return {
            "machine": machine.dumps(self.machine),
            "seconds": self.seconds,
            "factor": self.factor,
            "reference": self.reference,
        }

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> Prices:
        return Prices(**plain | {"machine": machine.parse(plain["machine"])})


def scaled(costs: PairCosts, factor: float) -> PairCosts:
    """Every message takes ``factor`` times as long."""
    short = costs.short
    if short is not None:
        short = replace(short, theta_s_per_byte=short.theta_s_per_byte * factor, gamma_s=short.gamma_s * factor)
    return replace(costs, theta_s_per_byte=costs.theta_s_per_byte * factor, gamma_s=costs.gamma_s * factor, short=short)


def semantics_of(method: configs.Method) -> Semantics:
    """How the simulator calls the ring of a configuration; an alltoall posts everything at once."""
    return "posted" if method.transport == "horovod" else method.ring


def predicted_s(exchange: Exchange, costs: PairCosts, semantics: Semantics) -> F64:
    """[N] seconds until each rank has sent and received all, every rank starting at once."""
    return flight(exchange, costs, np.zeros(len(exchange.rows)), semantics, "apart")


def factor_of(exchanges: Sequence[Exchange], costs: PairCosts, semantics: Semantics) -> float | None:
    """The median of measured over predicted seconds; None where nothing has travelled. ``flight_s`` was measured."""
    ratios = []
    for exchange in exchanges:
        expected = predicted_s(exchange, costs, semantics)
        seen = (expected > 0) & (exchange.flight_s > 0)
        ratios.append(exchange.flight_s[seen] / expected[seen])
    every = np.concatenate([*ratios, np.empty(0)])
    return float(np.median(every)) if len(every) else None


def central_bytes(trainer: Trainer, steps: Sequence[LayerStep]) -> dict[StageKey, float]:
    """Bytes that a rank's central products move, under the keys of their seconds: rows read by edge, rows written."""
    part = trainer.part
    edges = int((part.indices < part.num_inner).sum()) + part.num_inner
    directions: tuple[Direction, ...] = ("forward", "backward")
    return {
        ("central", step.layer, direction): 4.0 * step.width * (edges + part.num_inner)
        for step in steps
        for direction in directions
    }


def find(trainer: Trainer, world: World) -> Prices | None:
    """The costs at rank 0, None elsewhere: those of ``method.machine``, or measured now. Every rank calls it."""
    name = trainer.config.method.machine
    if name:
        found = on_root(world, lambda: described(name, world.size))
        return Prices(machine=found, seconds=0.0) if world.rank == 0 else None
    if not isinstance(world, MpiWorld):
        raise UserError("this world has no messages to measure; name a machine (method.machine)")
    return _measured(trainer, world)


def described(name: str, ranks: int) -> Machine:
    """The machine of ``method.machine``. UserError where it can't be read, or is of other ranks."""
    try:
        found = machine.find(name)
    except MachineError as error:
        raise UserError(f"method.machine: {error}") from None
    if found.ranks != ranks:
        raise UserError(f"method.machine {name} has {found.ranks} devices, and this job {ranks} ranks; name another")
    return found


def _measured(trainer: Trainer, world: MpiWorld) -> Prices | None:
    from toolkit.comm.calibrate import measure, sizes_between

    begin = time.perf_counter()
    everyone = world.gather(_message_bytes(trainer))
    low, high = world.broadcast((0, 0) if everyone is None else _span(everyone))
    fits, hosts = measure(world.comm, sizes_between(min(low, LEAST_BYTES), high)), world.gather(platform.node())
    if fits is None or hosts is None:
        return None
    return Prices(machine=machine.measured(hosts, fits), seconds=time.perf_counter() - begin)


def _message_bytes(trainer: Trainer) -> tuple[int, int]:
    """The fewest bytes on a channel of this rank at the narrowest width, and the most at the widest; 0: none."""
    engine, low, high = trainer.engine, 0, 0
    for step in engine.plan.train:
        if step.sends == "nothing" or not engine.coded("train", step.layer):
            continue
        rows = [count for count in engine.routes["train", step.layer].lent.counts if count]
        for count in rows:
            least, most = (count * sum(engine.codec.sizes(step.entries, bits)) for bits in (NARROWEST, WIDEST))
            low, high = min(low or least, least), max(high, most)
    return low, high


def _span(everyone: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min((low for low, _ in everyone if low), default=LEAST_BYTES), max(high for _, high in everyone)
