"""One assignment at rank 0: from traced exchanges to widths, in a thread of its own beside training.

A policy that builds programs (Pyomo) runs in a process besides: it would keep training's thread from Python.

What it computes depends on its request alone, never on when or how fast it runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.apart import assign_apart, builds_programs
from simulator.assignment import Assigned, assign_workload
from simulator.cost import PairCosts
from simulator.policy import ProblemError, SolverError
from simulator.workload import Exchange, Workload
from toolkit import config as configs
from toolkit.comm.layout import Bits
from toolkit.errors import UserError
from toolkit.train.prices import predicted_s, semantics_of
from toolkit.train.traced import RowKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Agreed:
    """The widths of one exchange, on every rank: [M] by sender, receiver, message; rows [N, N]."""

    rows: NDArray[np.int64]
    bits: Bits

    def channel(self, sender: int, receiver: int) -> Bits:
        ends = np.cumsum(self.rows.ravel()).reshape(self.rows.shape)
        end, count = int(ends[sender, receiver]), int(self.rows[sender, receiver])
        return self.bits[end - count : end]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """All that an assignment depends on. ``hidden_s``: for each exchange, what its messages may take for nothing."""

    exchanges: tuple[Exchange, ...]
    costs: PairCosts
    hidden_s: tuple[float, ...]
    key: int  # of drawn widths


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solved:
    """Every exchange's widths, and what to record of them."""

    agreed: dict[RowKey, Agreed]
    told: dict[str, Any]


def solve(request: Request, method: configs.Method) -> Solved:
    """The assignment. UserError where the policy can't be used."""
    idle, semantics = np.zeros(request.costs.ranks), semantics_of(method)
    workload = Workload(
        ranks=request.costs.ranks, exchanges=request.exchanges, held_s=idle, dense_s=idle, weight_gradient_bytes=0,
        weight_gradient_s=0.0, transport="", graph="",
    )  # fmt: skip
    try:
        assign = assign_apart if builds_programs(method.policy, semantics, method.budget) else assign_workload
        assigned = assign(
            workload, request.costs, method.policy, lam=method.lam, group_size=method.group_size, key=request.key,
            semantics=semantics, hidden_s=request.hidden_s, budget=method.budget,
        )  # fmt: skip
    except (ProblemError, SolverError) as error:
        raise UserError(f"method.policy {method.policy}: {error}") from None
    agreed = {(e.layer, e.direction): Agreed(rows=e.rows, bits=e.bits) for e in assigned.workload.exchanges}
    widths = [
        {
            "layer": exchange.layer,
            "direction": exchange.direction,
            "messages": histogram(exchange.bits),
            "objective": one.objective,
            "lower_bound": one.lower_bound,
            "variance": one.variance,
            "predicted_s": float(predicted_s(exchange, request.costs, semantics).max(initial=0.0)),
            "hidden_s": free,
        }
        for exchange, one, free in zip(assigned.workload.exchanges, assigned.exchanges, request.hidden_s, strict=True)
    ]
    return Solved(agreed=agreed, told={"widths": widths, **_totals(assigned)})


def _totals(assigned: Assigned) -> dict[str, Any]:
    return {
        "policy": assigned.policy,
        "reason": assigned.reason,
        "policies_s": assigned.predicted_s,
        "rounds_s": assigned.rounds_s,
        "objective": sum(one.objective for one in assigned.exchanges),
        "lower_bound": sum(one.lower_bound for one in assigned.exchanges),
        "variance": assigned.variance,
        "gap": assigned.gap,
    }


def histogram(bits: Bits) -> dict[str, int]:
    """Messages of each width."""
    widths, counts = np.unique(bits, return_counts=True)
    return {str(width): int(count) for width, count in zip(widths, counts, strict=True)}


def hidden_s(exchanges: Sequence[Exchange], method: configs.Method) -> tuple[float, ...]:
    """What each exchange's messages may take for nothing: the central product of the rank that has least of it."""
    free = method.overlap and method.hidden
    return tuple(float(e.central_s.min(initial=np.inf)) if free else 0.0 for e in exchanges)


@dataclass(slots=True, eq=False)
class Beside(Generic[T]):
    """Work in a thread of its own. ``result`` waits for it, and raises what it raised."""

    work: Callable[[], T]
    seconds: float = 0.0  # that the work took, once it is done
    _value: list[T] = field(default_factory=list)
    _error: list[BaseException] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless begun. The thread holds up no exit."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="assignment", daemon=True)
            self._thread.start()

    def is_done(self, wait_s: float) -> bool:
        """Whether it has ended, after waiting so long at most."""
        self.start()
        assert self._thread is not None
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        self.start()
        assert self._thread is not None
        self._thread.join()
        if self._error:
            raise self._error[0]
        return self._value[0]

    def _run(self) -> None:
        begin = time.perf_counter()
        try:
            self._value.append(self.work())
        except BaseException as error:  # raised again where it is waited for
            self._error.append(error)
        self.seconds = time.perf_counter() - begin
