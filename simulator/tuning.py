"""Which widths, and how often: rules over the points of ``assignment.tune`` and fixed widths; what a period costs.

A period costs training what its assignment holds it up: ranges to rank 0, widths to all, and the wait where the
solver needs longer than the epochs that it is given. Spread over the period, that asks for a long one. What asks for a
short one, ranges that have moved on since they were traced, is not in one recorded epoch: so the shortest period is
taken whose assignments stay below ``OVERHEAD_SHARE`` of training. `bitring tune --real` tries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from simulator.assignment import Point, knee
from simulator.cost import PairCosts
from simulator.epoch import EpochTime, simulate, variance_bound, with_bits
from simulator.wire import Wire
from simulator.workload import Workload

OVERHEAD_SHARE = 0.005  # of training: a tenth of what AdaQP's took (section 5, 5.43 %)
WORTH = 0.01  # of float32's epoch: what saves less is within what a prediction is off by
TRAINED = (2, 4, 8, 32)  # widths of all rows that training takes and `tune` proposes
RANGE_BYTES, WIDTH_BYTES = 8, 1  # of a message, to rank 0 and back
Rule = Literal["knee", "within_seconds", "within_variance", "hidden"]
RULES: tuple[Rule, ...] = get_args(Rule)


class TuningError(ValueError):
    """A demand that no point meets: one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A period and what its assignment costs. ``held_up_s``: of training, once a period."""

    epochs: int
    held_up_s: float
    epoch_s: float  # with its share of the assignment

    @property
    def share(self) -> float:
        """Of training that is spent on assignments."""
        return self.held_up_s / (self.epochs * self.epoch_s) if self.epoch_s else 0.0


def hidden_s(workload: Workload) -> tuple[float, ...]:
    """For each exchange what its messages may take for nothing: the central product of the rank that has least."""
    return tuple(float(exchange.central_s.min(initial=np.inf)) for exchange in workload.exchanges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """One width for every row, evaluated as a point of the grid is; 32 bits are float32."""

    width: int
    epoch: EpochTime
    variance: float
    on_front: bool = False


Choice = Point | Fixed
C = TypeVar("C", Point, Fixed, Choice)


def fixed(workload: Workload, wire: Wire, widths: Sequence[int] = TRAINED) -> list[Fixed]:
    """Every width that training takes, for all rows alike."""
    found = []
    for width in widths:
        sent = with_bits(workload, width)
        epoch = simulate(sent, wire.network, semantics=wire.semantics, links=wire.links)
        found.append(Fixed(width=width, epoch=epoch, variance=variance_bound(sent)))
    return found


def gain(choice: Choice, choices: Sequence[Choice]) -> float:
    """The share of float32's epoch that a choice saves; 1 where float32 is not among the choices."""
    plain = _float32(choices)
    if plain is None:
        return 1.0
    return 1 - choice.epoch.epoch_s / plain.epoch.epoch_s if plain.epoch.epoch_s else 0.0


def nothing_to_gain(choices: Sequence[Choice]) -> bool:
    """Whether even the fastest choice saves less than ``WORTH`` of float32's epoch."""
    return max(gain(choice, choices) for choice in choices) < WORTH


def pick(choices: Sequence[C], rule: Rule, limit: float = 0.0) -> C:
    """What a rule takes of points and fixed widths, marked together. TuningError where none fits.

    knee             the one farthest below the chord of the front
    within_seconds   the least variance of epochs of at most ``limit`` seconds
    within_variance  the fastest epoch of at most ``limit`` variance
    hidden           lambda 0: no second is bought, only what hides behind products is spent on variance; or what is
                     as fast as that and more exact

    What saves less than ``WORTH`` of float32's epoch is not worth its variance: float32 stands for it, unless a limit
    of seconds asks for every one that helps.
    """
    if rule == "within_seconds":
        fitting = [p for p in choices if p.epoch.epoch_s <= limit]
        if not fitting:
            least = min(p.epoch.epoch_s for p in choices)
            raise TuningError(f"no choice has an epoch of {limit:.6g} s or less: the fastest takes {least:.6g} s")
        return min(fitting, key=lambda p: (p.variance, p.epoch.epoch_s))
    plain = _float32(choices)
    worth = [p for p in choices if gain(p, choices) >= WORTH]
    if rule == "within_variance":
        fitting = [p for p in choices if p.variance <= limit and (p in worth or p is plain)]
        if not fitting:
            least = min(p.variance for p in choices)
            raise TuningError(f"no choice has a variance of {limit:.6g} or less: the least is {least:.6g}")
        return min(fitting, key=lambda p: (p.epoch.epoch_s, p.variance))
    if not worth:
        assert plain is not None  # nothing else keeps a choice from being worth it
        return plain
    if rule == "knee":
        return knee(worth)
    free = [p for p in worth if isinstance(p, Point) and p.lam == 0] or worth
    bare = min(free, key=lambda p: (p.variance, p.epoch.epoch_s))
    within = [p for p in worth if p is bare or (isinstance(p, Fixed) and p.epoch.epoch_s <= bare.epoch.epoch_s)]
    return min(within, key=lambda p: (p.variance, p is not bare, p.epoch.epoch_s))


def _float32(choices: Sequence[C]) -> C | None:
    return next((p for p in choices if isinstance(p, Fixed) and p.width == 32), None)


def held_up_s(workload: Workload, costs: PairCosts, solve_s: float, lead: int, epoch_s: float) -> float:
    """Seconds of training that one assignment takes: gathering, agreeing, and waiting for a solver that is late.

    The slowest message to rank 0 and from it, each rank on a link of its own.
    """
    sent = sum((exchange.rows.sum(axis=1) for exchange in workload.exchanges), np.zeros(workload.ranks, np.int64))
    size = np.zeros((workload.ranks, workload.ranks))
    size[1:, 0], size[0, 1:] = RANGE_BYTES * sent[1:], WIDTH_BYTES * sent.sum()
    seconds = costs.seconds(size)
    travel = float(seconds[:, 0].max(initial=0.0) + seconds[0].max(initial=0.0))
    return travel + max(0.0, solve_s - lead * epoch_s)


def periods(workload: Workload, costs: PairCosts, point: Point, choices: Sequence[int], lead: int) -> list[Period]:
    """Every period for one choice of lambda and group size; the solver has ``lead`` epochs, at most the period."""
    found = []
    for epochs in sorted(choices):
        held = held_up_s(workload, costs, point.solve_s, min(lead, epochs), point.epoch.epoch_s)
        found.append(Period(epochs=epochs, held_up_s=held, epoch_s=point.epoch.epoch_s + held / epochs))
    return found


def shortest(found: Sequence[Period]) -> Period:
    """The shortest period whose assignments stay below OVERHEAD_SHARE; the longest where none does."""
    return next((period for period in found if period.share <= OVERHEAD_SHARE), found[-1])
