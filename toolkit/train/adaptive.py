"""Widths chosen adaptively while training (AdaQP, section 4): trace, gather, solve beside training, switch.

    epoch       .. | last of a period            | ...           | + lead
    all ranks      | trace ranges, gather        | train on      | wait if need be, agree, new layouts
    rank 0         |            + measured costs | a thread solves |

The first period sends 8 bits. The switch comes ``method.lead`` epochs after the trace whatever the solver takes, so
the widths of every epoch follow from the run alone. The policies are those of `bitring simulate --policy`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulator.keyed import mix64
from simulator.workload import Exchange
from toolkit import config as configs
from toolkit.comm.layout import Bits, Listing
from toolkit.comm.ledger import Direction, StageKey
from toolkit.comm.world import World, on_root
from toolkit.errors import UserError
from toolkit.plan import LayerStep
from toolkit.train import compared, prices
from toolkit.train.assigner import Agreed, Beside, Request, Solved, hidden_s, solve
from toolkit.train.attended import AttentionRecorder
from toolkit.train.compared import RoundEnds
from toolkit.train.prices import Prices
from toolkit.train.traced import RankRecord, RowKey, coefficients_received, exchange_of

if TYPE_CHECKING:
    from toolkit.train.trainer import Trainer

log = logging.getLogger("bitring")
FIRST_BITS = 8
WAIT_S = 0.1  # between looks for a signal
WATCHED = ("flight", "central")
_ARRAYS = ("rows", "range_squared", "alpha_squared", "flight_s", "central_s")  # of an exchange, in a checkpoint
Line = tuple[str, dict[str, Any]]
Ranges = dict[RowKey, NDArray[np.float64]]


class Traced(NamedTuple):
    """What a rank tells of a period."""

    ranges: Ranges
    attention: dict[int, NDArray[np.float64]]
    seconds: dict[StageKey, float]
    round_ends_s: RoundEnds


@dataclass(slots=True, kw_only=True)
class Spent:
    """Rank 0's seconds for assignments: all but ``beside_s`` held training up."""

    assignments: int = 0
    calibrate_s: float = 0.0  # measuring the network
    trace_s: float = 0.0  # gathering traces
    wait_s: float = 0.0  # at switches: for the solver, and agreeing
    beside_s: float = 0.0  # solving, beside training

    @property
    def held_up_s(self) -> float:
        """Of every period; calibration is apart, as it comes once."""
        return self.trace_s + self.wait_s


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """An assignment under way. ``request`` and ``solving`` at rank 0."""

    switch: int  # after this epoch
    request: Request | None = None
    solving: Beside[Solved] | None = None


class Adaptive:
    """The widths in force (comm/widths.py), and the ones that come next. Every rank has one, called in step."""

    def __init__(self, world: World, method: configs.Method, seed: int) -> None:
        self._world, self._method, self._seed = world, method, seed
        self.number = 0  # of the assignment in force; 0: the first period
        self.agreed: dict[RowKey, Agreed] = {}
        self.prices: Prices | None = None  # at rank 0
        self.pending: Pending | None = None
        self.stop_asked: Callable[[], bool] = lambda: False  # whether a signal has reached this rank
        self._lines: list[Line] = []  # for the record, at rank 0
        self.spent = Spent()
        self._priced = False
        self._measured_at = time.perf_counter()
        self._frames: list[RankRecord] | None = None  # what never changes of every rank, at rank 0
        self._ready = False
        self._coded: frozenset[int] = frozenset()  # layers whose rows have widths
        self._ranges: dict[RowKey, NDArray[np.float64]] = {}
        self._attention: AttentionRecorder | None = None
        self._seconds: defaultdict[StageKey, list[float]] = defaultdict(list)  # of this period's epochs
        self._before: dict[StageKey, float] = {}
        self._rounds: RoundEnds = {}  # of this period's epoch with the least flight

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
        self._ranges[step.layer, direction] = ranges.double().square().cpu().numpy()

    # Trainer.step

    def prepare(self, trainer: Trainer, before: Adaptive | None = None) -> None:
        """Once, before the first epoch: the costs (those of an earlier seed, if there was one) and all lists."""
        if self._ready or self._world.size == 1:
            return
        first_switch = self._method.period + min(self._method.lead, self._method.period)
        if trainer.config.train.epochs <= first_switch:
            log.info(
                "training ends before the first choice of widths, after epoch %d: every message is of %d bits; "
                "method.period and method.lead make it sooner", first_switch, FIRST_BITS,
            )  # fmt: skip
        if before is not None and before._priced and not self._priced:
            self.prices, self._priced = before.prices, True
        if not self._priced:
            self._price(trainer)
        if trainer.engine.kind == "gat":
            self._attention = AttentionRecorder(trainer.part)
        frame = self._frame(trainer)
        self._coded = frozenset(frame.send_counts)
        self._frames = self._world.gather(frame)
        self._ready = True

    def before_epoch(self, trainer: Trainer, epoch: int) -> None:
        """Listen in the last epoch of a period; elsewhere ranges cost nothing."""
        if self._world.size == 1:
            return
        self.prepare(trainer)
        if self.pending is not None and epoch > self.pending.switch:
            self._switch()
        self._listen(trainer, on=self._is_last(epoch))
        self._before = dict(trainer.ledger.seconds)

    def after_epoch(self, trainer: Trainer, epoch: int) -> None:
        """What is agreed for this epoch: the switch, then the trace that ends a period. Every rank calls it."""
        if self._world.size == 1:
            return
        for key, seconds in trainer.ledger.seconds.items():
            if key[0] in WATCHED:
                self._seconds[key].append(seconds - self._before.get(key, 0.0))
        self._rounds = compared.shorter(self._rounds, trainer.ledger.round_ends_s)
        if self.pending is not None and epoch >= self.pending.switch:
            self._switch()
        if self._is_last(epoch):
            self._listen(trainer, on=False)
            self._trace(trainer, epoch)
            if self._method.lead == 0:
                self._switch()

    def take_lines(self) -> list[Line]:
        """What happened since the last call, at rank 0: kind and values of each line of the record."""
        lines, self._lines = self._lines, []
        return lines

    def _is_last(self, epoch: int) -> bool:
        return (epoch + 1) % self._method.period == 0

    def _listen(self, trainer: Trainer, *, on: bool) -> None:
        trainer.engine.trace = self if on else None
        if self._attention is not None:
            self._attention.listen(trainer.network, on=on)

    def _price(self, trainer: Trainer) -> None:
        begin = time.perf_counter()
        self.prices = prices.find(trainer, self._world)
        self.spent.calibrate_s += time.perf_counter() - begin
        self._priced, self._measured_at = True, time.perf_counter()
        if self.prices is not None and self.prices.measured:
            n = self._world.size
            log.info("the costs of %d pairs of ranks were measured in %.2f s", n * (n - 1), self.prices.seconds)
            self._lines.append(("costs", {"seconds": self.prices.seconds}))

    def _trace(self, trainer: Trainer, epoch: int) -> None:
        """The end of a period: gather what was traced and measured, and let rank 0 think."""
        begin = time.perf_counter()
        gathered = self._world.gather(self._record())
        exchanges = self._exchanges(trainer, gathered) if gathered is not None else ()
        rounds = [told.round_ends_s for told in gathered or []]
        drifted = on_root(self._world, lambda: self._compare(exchanges, rounds))
        self._seconds.clear()
        self._rounds = {}
        self.spent.trace_s += time.perf_counter() - begin
        if drifted:
            self._price(trainer)
        self.pending = Pending(switch=epoch + min(self._method.lead, self._method.period))
        if gathered is not None:
            self._begin(exchanges, start=epoch + 1 < trainer.config.train.epochs)

    def _begin(self, exchanges: tuple[Exchange, ...], *, start: bool) -> None:
        """At rank 0: ask for the next widths. Not started where training is over, unless it is made longer."""
        assert self.pending is not None and self.prices is not None
        request = Request(
            exchanges=exchanges,
            costs=self.prices.costs(),
            hidden_s=hidden_s(exchanges, self._method),
            key=mix64(self._seed, 0xADA, self.number + 1),
        )
        self.pending.request, method = request, self._method
        self.pending.solving = Beside(lambda: solve(request, method))
        if start:
            self.pending.solving.start()

    def _switch(self) -> None:
        """Agree on the widths that were asked for; training waits here if they are not there yet."""
        pending, begin = self.pending, time.perf_counter()
        assert pending is not None

        def result() -> Solved | None:
            assert pending.solving is not None
            while not pending.solving.is_done(WAIT_S):
                if self.stop_asked():
                    return None
            return pending.solving.result()

        solved = on_root(self._world, result)
        if solved is None:  # a signal ends training after this epoch: the switch comes when it goes on
            return
        self.agreed, self.pending = solved.agreed, None
        self.number += 1
        waited = time.perf_counter() - begin
        self.spent.wait_s += waited
        self.spent.assignments += 1
        if pending.solving is not None:
            self.spent.beside_s += pending.solving.seconds
            told = {**solved.told, "number": self.number, "solve_s": pending.solving.seconds, "assign_s": waited}
            self._lines.append(("assignment", told))

    # What crosses to rank 0

    def _frame(self, trainer: Trainer) -> RankRecord:
        """What stays as it is from period to period."""
        engine = trainer.engine
        steps = [s for s in engine.plan.train if s.sends != "nothing" and engine.coded("train", s.layer)]
        routes = {step.layer: engine.routes["train", step.layer] for step in steps}
        return RankRecord(
            traced={},
            bits={},
            alphas=coefficients_received(trainer, steps),
            send_counts={layer: route.lent.counts for layer, route in routes.items()},
            receive_counts={layer: route.borrowed.counts for layer, route in routes.items()},
            seconds=prices.central_bytes(trainer, steps),
            inner=trainer.part.num_inner,
        )

    def _record(self) -> Traced:
        """Ranges of coded rows; attention; least seconds of flight and median ones of central products; round ends."""
        seconds = {
            key: float(min(values) if key[0] == "flight" else np.median(values))
            for key, values in self._seconds.items()
        }
        ranges = {key: values for key, values in self._ranges.items() if key[0] in self._coded}
        attention = {} if self._attention is None else self._attention.squares
        return Traced(ranges=ranges, attention=attention, seconds=seconds, round_ends_s=self._rounds)

    def _exchanges(self, trainer: Trainer, gathered: list[Any]) -> tuple[Exchange, ...]:
        """At rank 0: every coded exchange of an epoch, at the widths in force."""
        assert self._frames is not None and self.prices is not None
        measured = self.prices.measured
        everyone = [
            dataclasses.replace(
                frame,
                traced=ranges,
                bits={key: np.full(len(values), FIRST_BITS, np.uint8) for key, values in ranges.items()},
                alphas=attended or frame.alphas,
                seconds=seconds if measured else {**seconds, **self._described_s(frame, rank)},
            )
            for rank, (frame, (ranges, attended, seconds, _)) in enumerate(zip(self._frames, gathered, strict=True))
        ]
        exchanges = []
        for layer, direction in everyone[0].traced:
            exchange = exchange_of(everyone, trainer.engine.plan.train[layer], direction)
            if (layer, direction) in self.agreed:
                exchange = dataclasses.replace(exchange, bits=self.agreed[layer, direction].bits)
            exchanges.append(exchange)
        return tuple(exchanges)

    def _described_s(self, frame: RankRecord, rank: int) -> dict[StageKey, float]:
        """Central seconds that follow from the machine's memory rate, so that nothing measured decides; else 0."""
        assert self.prices is not None
        _, memory_byte_s = self.prices.machine.compute_rates()[rank]
        return {key: num_bytes / memory_byte_s if memory_byte_s else 0.0 for key, num_bytes in frame.seconds.items()}

    def _compare(self, exchanges: tuple[Exchange, ...], rounds: list[RoundEnds]) -> bool:
        """At rank 0: this period's exchanges against their costs; whether to measure the network anew."""
        assert self.prices is not None
        semantics, base = prices.semantics_of(self._method), self.prices.machine.pair_costs()
        told = compared.compare(exchanges, rounds, self.prices.costs(), semantics)
        self.prices = self.prices.observed(prices.factor_of(exchanges, base, semantics))
        drift, limit = self.prices.drift(), self._method.drift
        beyond = bool(limit) and abs(drift) > limit
        again = beyond and self.prices.affordable(time.perf_counter() - self._measured_at)
        line = {"number": self.number, "exchanges": told, "factor": self.prices.factor, "drift": drift}
        self._lines.append(("exchanges", line | {"measured_anew": again}))
        if beyond:
            kept = "it is not yet time to measure anew" if self.prices.measured else "method.machine is as described"
            what = "measuring the network anew" if again else kept
            log.info("exchanges take %.0f %% of their time at the last measurement: %s", 100 * (1 + drift), what)
        return again

    # train/state.py

    def to_state(self) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
        """JSON values, and tensors by name, at rank 0. Nothing in them depends on how far the solver is."""
        if self.prices is None:
            return None, {}
        tensors = {}
        for (layer, direction), agreed in self.agreed.items():
            tensors[f"widths/{layer}/{direction}/rows"] = torch.from_numpy(agreed.rows)
            tensors[f"widths/{layer}/{direction}/bits"] = torch.from_numpy(agreed.bits)
        pending = self.pending
        exchanges = pending.request.exchanges if pending is not None and pending.request is not None else ()
        for exchange in exchanges:
            for name in _ARRAYS:
                array = np.ascontiguousarray(getattr(exchange, name))
                tensors[f"pending/{exchange.layer}/{exchange.direction}/{name}"] = torch.from_numpy(array)
        plain = {
            "ranks": self._world.size,
            "number": self.number,
            "prices": self.prices.to_plain(),
            "spent": dataclasses.asdict(self.spent),
            "switch": None if pending is None else pending.switch,
            "pending": [[e.layer, e.direction, e.row_entries] for e in exchanges],
        }
        return plain, tensors

    def take(self, plain: dict[str, Any] | None, tensors: dict[str, Tensor]) -> None:
        """Go on from ``to_state``, on every rank; with another number of ranks, from the first period."""
        if plain is None or plain.get("ranks", self._world.size) != self._world.size:
            return
        if "prices" not in plain:
            raise UserError("the checkpoint has adaptive widths of an older bitring; continue with that one")
        try:
            self._take(plain, tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the checkpoint's adaptive widths are damaged ({error}); go on from another one") from None

    def _take(self, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self.number, self.spent, self._priced = int(plain["number"]), Spent(**plain["spent"]), True
        self.prices = Prices.of_plain(plain["prices"]) if self._world.rank == 0 else None
        keys = dict.fromkeys(tuple(name.split("/")[1:3]) for name in arrays if name.startswith("widths/"))
        self.agreed = {
            (int(layer), cast(Direction, way)): Agreed(
                rows=arrays[f"widths/{layer}/{way}/rows"], bits=arrays[f"widths/{layer}/{way}/bits"]
            )
            for layer, way in keys
        }
        for key, agreed in self.agreed.items():
            if agreed.rows.shape != (self._world.size,) * 2 or agreed.bits.shape != (agreed.rows.sum(),):
                raise ValueError(f"{agreed.bits.size} widths for {agreed.rows.sum()} messages of layer {key[0]}")
        self.pending = None
        if plain["switch"] is not None:
            self.pending = Pending(switch=int(plain["switch"]))
            if self._world.rank == 0:
                self._begin(tuple(_exchange(arrays, *one) for one in plain["pending"]), start=True)


def _exchange(arrays: dict[str, NDArray[Any]], layer: int, direction: Direction, row_entries: int) -> Exchange:
    """One that was traced, out of a checkpoint."""
    given = {name: arrays[f"pending/{layer}/{direction}/{name}"] for name in _ARRAYS}
    unknown = np.zeros(len(given["rows"]))
    return Exchange(
        layer=layer,
        direction=direction,
        row_entries=row_entries,
        bits=np.full(len(given["range_squared"]), FIRST_BITS, np.uint8),
        encode_s=unknown,
        decode_s=unknown,
        marginal_s=unknown,
        **given,
    )
