"""PipeGCN, simulated: rows and errors of an earlier epoch are used, so that messages hide behind whole epochs.

A rank's exchanges go one after another in a thread of their own, under the compute of this epoch and the next:

    compute    epoch t: exchange 1, 2, .. 2L - 2, sum of gradients | epoch t + 1: exchange 1 needs what t posted for it
    thread     1 of t, when it is posted and the thread is free | 2 of t | ..                      | 1 of t + 1

How long a steady epoch is comes of unrolling epochs until their clocks recur, not of a formula.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.epoch import Leg, Load, Step, walk
from simulator.methods import I64, LONGEST_TURN, Epochs, MethodError, require_within, slowed_by
from simulator.wire import Wire

F64 = NDArray[np.float64]
SAME = 1e-12  # of an epoch: clocks that differ less are the same
LONGEST = 400  # epochs until a pipeline's mean must have settled
REMEMBERED = 64  # epochs in which clocks may recur
WARM_UP = 10  # epochs in which a pipeline fills, for each epoch of staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined:
    """Rows and errors are ``staleness`` epochs old; in the first epochs there are none, and none is waited for."""

    staleness: int = 1

    def __post_init__(self) -> None:
        require_within(0, LONGEST_TURN, staleness=self.staleness)

    def run(self, load: Load, wire: Wire, epochs: I64, device: F64 | None = None) -> Epochs:
        """Unrolled epoch after epoch, the pipeline filled before: ``epochs`` count from then."""
        unrolled = self._unroll(load, wire, len(epochs), device)
        seconds = unrolled.of(self._warm_up + len(epochs))
        return Epochs(seconds=seconds[-len(epochs) :], load=load, steps=unrolled.steps)

    def steady(self, load: Load, wire: Wire) -> Epochs:
        """What the epochs settle in. MethodError if they don't."""
        unrolled = self._unroll(load, wire, LONGEST, None)
        cycle = unrolled.seconds[-unrolled.cycle :] if unrolled.cycle else [settled(np.array(unrolled.seconds))]
        return Epochs(seconds=np.array(cycle), load=load, steps=unrolled.steps)

    @property
    def _warm_up(self) -> int:
        return WARM_UP * max(1, self.staleness)

    def _unroll(self, load: Load, wire: Wire, count: int, device: F64 | None) -> _Unrolled:
        """Warm-up and ``count`` epochs, or, undisturbed, as many as it takes for all clocks to recur.

        What is posted in epoch t must be there in epoch t + staleness.
        """
        disturbed = device is not None or (wire.slow is not None and wire.slow.ndim == 3)
        free = np.zeros(load.ranks)  # when a rank's thread has ended the exchanges before, from this epoch's beginning
        arrived: list[list[F64]] = []  # of the last epochs, [exchange], likewise
        history: list[F64] = []
        seconds: list[float] = []
        steps: list[Step] = []
        for number in range(-self._warm_up, count):
            at = max(number, 0)  # the warm-up is as the first epoch
            now = slowed_by(load, None if device is None else device[at])
            slow = wire.slow if wire.slow is None or wire.slow.ndim == 2 else wire.slow[at]
            own = _Pipe(replace(wire, slow=slow), free, self.staleness, arrived)
            steps, end_s = walk(now, own.meet)
            seconds.append(float(end_s))
            free = own.free - end_s
            arrived = [[t - end_s for t in one] for one in [*arrived, own.arrivals][-max(1, self.staleness) :]]
            if not disturbed:
                clocks = np.concatenate([free, *(t for one in arrived for t in one)])
                if cycle := _recurs(history, clocks, float(end_s)):
                    return _Unrolled(seconds=seconds, cycle=cycle, steps=steps)
                history = [*history, clocks][-REMEMBERED:]
        return _Unrolled(seconds=seconds, cycle=0, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Unrolled:
    """Epochs of a pipeline, and the last one's stages. The last ``cycle`` of them repeat for ever (0: not known)."""

    seconds: list[float]
    cycle: int
    steps: list[Step]

    def of(self, count: int) -> F64:
        """[count] seconds, repeated where need be."""
        more = count - len(self.seconds)
        again = np.resize(self.seconds[-self.cycle :], more) if more > 0 and self.cycle else np.empty(0)
        return np.concatenate([self.seconds[:count], again])


def _recurs(history: list[F64], clocks: F64, epoch_s: float) -> int:
    """How many epochs ago the clocks were the same; 0: never."""
    for back, before in enumerate(reversed(history), 1):
        if len(before) == len(clocks) and np.abs(clocks - before).max() <= SAME * epoch_s:
            return back
    return 0


class _Pipe:
    """One epoch of a pipeline: its messages leave in order, and the ones of an earlier epoch are waited for."""

    def __init__(self, wire: Wire, free: F64, staleness: int, earlier: list[list[F64]]) -> None:
        self.wire, self.free, self.staleness, self.earlier = wire, free, staleness, earlier
        self.arrivals: list[F64] = []

    def meet(self, leg: Leg, start: F64) -> tuple[F64, F64]:
        number = len(self.arrivals)
        self.free = self.wire.flight(leg.num_bytes, np.maximum(start, self.free))
        self.arrivals.append(self.free)
        computed = start + leg.central_s
        if self.staleness == 0:
            return self.free, np.maximum(self.free, computed)
        if len(self.earlier) < self.staleness:  # zeros, in the first epochs
            return self.free, computed
        return self.free, np.maximum(self.earlier[0][number], computed)


def settled(seconds: F64) -> float:
    """The mean of the last half of epochs [E] whose clocks don't recur. MethodError if that half still drifts."""
    half = seconds[len(seconds) // 2 :]
    first, second = half[: len(half) // 2].mean(), half[len(half) // 2 :].mean()
    if abs(first - second) > 1e-3 * second:
        raise MethodError(
            f"the pipeline has not settled within {len(seconds)} epochs: {first:.6g} s, then {second:.6g} s"
        )
    return float(half.mean())
