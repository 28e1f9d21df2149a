"""Messages a second of the ring engines: events against SimPy, and the max-plus recursion.

    python -m bench.engine

Events and SimPy alternate in one run on the same rings; each engine's best and median repeat. One core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.common import file_result
from simulator.events import run_ring
from simulator.maxplus import SEMANTICS, ring_finish
from tests.simulator.simpy_ring import simpy_finish
from toolkit import report

F64 = NDArray[np.float64]
EVENT_RANKS = (8, 64, 256)
SIMPY_RANKS = 64  # SimPy has its best rate there or below; larger only takes longer
MAXPLUS_SHAPES = ((1, 512), (8, 512), (1, 4096), (1024, 8))  # (batch, N)
REPEATS = 7


def rings(batch: int, n: int) -> tuple[F64, F64]:
    rng = np.random.default_rng(0)
    return rng.lognormal(0, 1, (batch, n, n)) * 1e-3, rng.random((batch, n)) * 1e-3


def rates(messages: int, *engines: Callable[[], object]) -> list[dict[str, float]]:
    """Messages a second of engines that take turns; the first turn is warm-up."""
    seconds: list[list[float]] = [[] for _ in engines]
    for _ in range(REPEATS + 1):
        for engine, taken in zip(engines, seconds, strict=True):
            begin = time.perf_counter()
            engine()
            taken.append(time.perf_counter() - begin)
    return [
        {"best_per_s": messages / min(taken[1:]), "median_per_s": messages / float(np.median(taken[1:]))}
        for taken in seconds
    ]


def millions(rate: dict[str, float]) -> list[str]:
    return [f"{rate[key] / 1e6:.2f}" for key in ("best_per_s", "median_per_s")]


def main() -> int:
    rows, events, maxplus = [], [], []
    for n in EVENT_RANKS:
        (cost,), (start,) = rings(1, n)
        messages, turns = n * (n - 1), max(1, 4096 // n**2)
        for semantics in SEMANTICS:

            def ours(cost: F64 = cost, start: F64 = start, semantics: Any = semantics, turns: int = turns) -> None:
                for _ in range(turns):
                    run_ring(cost, start, semantics)

            def theirs(cost: F64 = cost, start: F64 = start, semantics: Any = semantics, turns: int = turns) -> None:
                for _ in range(turns):
                    simpy_finish(cost, start, semantics)

            engines = (ours, theirs) if n <= SIMPY_RANKS else (ours,)
            found = rates(messages * turns, *engines)
            entry: dict[str, Any] = {"ranks": n, "semantics": semantics, "events": found[0]}
            row = [str(n), semantics, *millions(found[0]), "", ""]
            if len(found) == 2:
                ratio = found[0]["median_per_s"] / found[1]["median_per_s"]
                entry |= {"simpy": found[1], "events_over_simpy": ratio}
                row[4:] = [millions(found[1])[1], f"{ratio:.1f}"]
            rows.append(row)
            events.append(entry)
    headers = ["ranks", "semantics", "events, best", "median", "SimPy, median", "events/SimPy"]
    print("Millions of messages a second\n" + report.table(rows, headers))
    rows = []
    for batch, n in MAXPLUS_SHAPES:
        cost, start = rings(batch, n)
        for semantics in SEMANTICS:

            def vectorised(cost: F64 = cost, start: F64 = start, semantics: Any = semantics) -> None:
                ring_finish(cost, start, semantics)

            (rate,) = rates(batch * n * (n - 1), vectorised)
            rows.append([str(batch), str(n), semantics, *millions(rate)])
            maxplus.append({"batch": batch, "ranks": n, "semantics": semantics, **rate})
    print(report.table(rows, ["batch", "ranks", "semantics", "max-plus, best", "median"]))
    print(file_result("engine", {"repeats": REPEATS, "events": events, "maxplus": maxplus}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
