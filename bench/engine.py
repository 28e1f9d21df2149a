"""Messages a second of the ring engines: events against SimPy, the max-plus recursion, and an epoch of 4,096 ranks.

    python -m bench.engine

Events and SimPy alternate in one run on the same rings; each engine's best and median repeat. One core. The large
epoch is 3 layers forward, 50,319,360 messages, whose costs are made round by round (512 hosts of 8 devices, sizes
drawn by key); its seconds hold the making of the costs, its memory is the peak of a process of its own. Goals: events
1M messages/s and 4 times SimPy, max-plus 50M messages/s at 512 ranks, the large epoch 60 s and 8 GiB.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.common import Goal, file_result, goals_table, plain_goals
from simulator.events import run_ring, run_shared
from simulator.keyed import mix_array
from simulator.machine import preset
from simulator.maxplus import SEMANTICS, Semantics, ring_finish, ring_finish_by_rounds
from tests.simulator.simpy_ring import simpy_finish
from toolkit import report

F64 = NDArray[np.float64]
EVENT_RANKS = (8, 64, 256)
SIMPY_RANKS = 64  # SimPy has its best rate there or below; larger only takes longer
MAXPLUS_SHAPES = ((1, 512), (8, 512), (1, 4096), (1024, 8))  # (batch, N)
REPEATS = 7
LARGE, LAYERS, A_HOST = 4096, 3, 8


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


def large_epoch(semantics: Semantics) -> dict[str, float]:
    """Seconds and peak memory of LAYERS exchanges of LARGE ranks, each rank starting a layer when it is through one."""
    begin = time.perf_counter()
    receiver = np.arange(LARGE)
    clock = np.zeros(LARGE)
    for layer in range(LAYERS):

        def costs_of(rounds: range, layer: int = layer) -> F64:
            sender = (receiver - np.array(rounds)[:, None]) % LARGE
            words = mix_array((sender + LARGE * receiver + LARGE**2 * layer).astype(np.uint64))
            num_bytes = 10_000 + (words >> np.uint64(47)).astype(np.float64)  # up to 131,071 more
            near = sender // A_HOST == receiver // A_HOST
            return np.where(near, 4e-12 * num_bytes + 5e-6, 8e-11 * num_bytes + 2e-5)

        clock = ring_finish_by_rounds(costs_of, clock, semantics) + 1e-3
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": time.perf_counter() - begin, "peak_gib": peak_kib / 2**20, "epoch_s": float(clock.max())}


def large_epochs() -> list[dict[str, Any]]:
    """Each in a process of its own, or the peak would be the largest of all."""
    found = []
    for semantics in SEMANTICS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append({"semantics": semantics, **pool.apply(large_epoch, (semantics,))})
    return found


def shared_links() -> dict[str, dict[str, float]]:
    """Messages that share the links of four-by-four-100g, 16 ranks: rates are shared out at every start and end."""
    topology = preset("four-by-four-100g").topology()
    sizes = np.random.default_rng(0).integers(1, 1 << 20, (16, 16))
    np.fill_diagonal(sizes, 0)
    start = np.zeros(16)
    engines = [lambda s=s: run_shared(sizes, start, s, topology) for s in SEMANTICS]  # type: ignore[misc]
    return dict(zip(SEMANTICS, rates(16 * 15, *engines), strict=True))


def goals(events: list[dict[str, Any]], maxplus: list[dict[str, Any]], large: list[dict[str, Any]]) -> list[Goal]:
    """What was promised, each over all four semantics: the worst one."""
    found = []
    for n in EVENT_RANKS:
        own = [entry for entry in events if entry["ranks"] == n]
        slowest = min(entry["events"]["median_per_s"] for entry in own)
        found.append(Goal(what=f"events a second, {n} ranks", value=slowest, goal=1e6, more_is_better=True))
        ratios = [entry["events_over_simpy"] for entry in own if "simpy" in entry]
        if ratios:
            found.append(Goal(what=f"events over SimPy, {n} ranks", value=min(ratios), goal=4.0, more_is_better=True))
    slowest = min(entry["median_per_s"] for entry in maxplus if (entry["batch"], entry["ranks"]) == (1, 512))
    found.append(Goal(what="max-plus messages a second, 512 ranks", value=slowest, goal=5e7, more_is_better=True))
    found.append(Goal(what=f"epoch of {LARGE:,} ranks, s", value=max(e["seconds"] for e in large), goal=60.0))
    found.append(Goal(what=f"epoch of {LARGE:,} ranks, GiB", value=max(e["peak_gib"] for e in large), goal=8.0))
    return found


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
    shared = shared_links()
    rows = [[name, f"{rate['median_per_s']:,.0f}"] for name, rate in shared.items()]
    print(report.table(rows, ["shared links, 16 ranks", "messages a second, median"]))
    large = large_epochs()
    rows = [[e["semantics"], report.seconds(e["seconds"]), f"{e['peak_gib']:.2f} GiB"] for e in large]
    print(report.table(rows, [f"{LARGE:,} ranks, {LAYERS} layers", "simulated in", "peak memory"]))
    promised = goals(events, maxplus, large)
    print(goals_table(promised))
    result = {
        "goals": plain_goals(promised),
        "repeats": REPEATS,
        "events": events,
        "maxplus": maxplus,
        "shared": shared,
        "large": large,
    }
    print(file_result("engine", result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
