"""Epochs under stragglers: their distribution, what the stragglers cost, and whether one choice beats another.

Everything that is compared meets the same stragglers in the same epochs (stragglers.py), so differences are paired.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.epoch import Load
from simulator.methods import Method
from simulator.stragglers import Difference, Stragglers, paired_difference
from simulator.wire import Wire

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """A method with what it sends."""

    name: str
    method: Method
    load: Load
    wire: Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Seconds of epochs."""

    epochs: int
    mean_s: float
    deviation_s: float
    p5_s: float
    median_s: float
    p95_s: float

    @staticmethod
    def of(seconds: F64) -> Distribution:
        p5, median, p95 = np.percentile(seconds, [5, 50, 95])
        deviation = float(seconds.std(ddof=1)) if len(seconds) > 1 else 0.0
        return Distribution(
            epochs=len(seconds),
            mean_s=float(seconds.mean()),
            deviation_s=deviation,
            p5_s=float(p5),
            median_s=float(median),
            p95_s=float(p95),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """What stragglers do to a choice. Differences are seconds an epoch that each cost: with it, less without it."""

    epochs: Distribution
    all_stragglers: Difference
    each: tuple[Difference, ...]  # one straggler gone, the others as they are


def seconds(choice: Choice, stragglers: Stragglers, epochs: int) -> F64:
    """[E] seconds of epochs 0 .. E - 1. CostError for slow links where links have no pairs."""
    numbers, ranks = np.arange(epochs), choice.load.ranks
    kinds = {member.what for member in stragglers.members}
    device = stragglers.device_factors(ranks, numbers) if "device" in kinds else None
    wire = choice.wire
    if "link" in kinds:
        wire = replace(wire, slow=stragglers.link_factors(ranks, numbers))
    return choice.method.run(choice.load, wire, numbers, device).seconds


def disturbed(choice: Choice, stragglers: Stragglers, epochs: int, confidence: float = 0.95) -> Disturbed:
    """The distribution of epochs, and what the stragglers cost together and one by one. StragglerError, CostError."""
    found = seconds(choice, stragglers, epochs)
    return Disturbed(
        epochs=Distribution.of(found),
        all_stragglers=paired_difference(seconds(choice, stragglers.gone(), epochs), found, confidence),
        each=tuple(
            paired_difference(seconds(choice, stragglers.without(index), epochs), found, confidence)
            for index in range(len(stragglers.members))
        ),
    )
