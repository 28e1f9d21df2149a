"""Training epochs on the emulated network, several configurations in one job, epoch by epoch in turn.

Not a bench by itself: bench.overlap and bench.messages call compare().
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.netlab import Lab
from bench.netlab.lab import python
from toolkit import config as configs
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.comm.world import MpiWorld
    from toolkit.train.trainer import Trainer

WARM_UP = 2  # epochs
FIRST_EPOCH = configs.Method().period - WARM_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One contestant: medians over its epochs."""

    epoch_s: float  # of the slowest rank
    stage_s: list[dict[str, float]]  # by rank: "stage/layer/direction" -> seconds
    train_bytes: int  # rows sent by all ranks in an epoch

    def stage(self, name: str) -> list[float]:
        """Seconds of a stage by rank, over layers and directions."""
        return [sum(value for key, value in own.items() if key.split("/")[0] == name) for own in self.stage_s]


def compare(
    lab: Lab, base: configs.Config, variants: Mapping[str, Sequence[str]], repeats: int, record: Path | None = None
) -> dict[str, Measured]:
    """Train ``base`` with each variant's overrides on ``lab`` (which is up), one rank a host.

    ``record``: a folder that takes <number of the variant>.npz, its workload, and machine.toml, measured there.
    Adaptive widths of the default period and method.lead = 0 are chosen as the warm-up ends.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        job = {"config": configs.to_toml(base), "variants": variants, "repeats": repeats, "out": str(out)}
        job["record"] = None if record is None else str(record)
        code = lab.mpirun(python("bench.netepoch", json.dumps(job))).returncode
        if code:
            raise UserError(f"the job on the emulated network ended with code {code}")
        told: list[dict[str, Any]] = json.loads(out.read_text())
    return {name: _median([rank[name] for rank in told]) for name in variants}


def _median(ranks: list[dict[str, Any]]) -> Measured:
    slowest = [max(times) for times in zip(*(rank["epoch_s"] for rank in ranks), strict=True)]
    stage_s = []
    for rank in ranks:
        keys = sorted({key for epoch in rank["stages"] for key in epoch})
        stage_s.append({key: statistics.median(epoch.get(key, 0.0) for epoch in rank["stages"]) for key in keys})
    return Measured(
        epoch_s=statistics.median(slowest), stage_s=stage_s, train_bytes=sum(rank["bytes"] for rank in ranks)
    )


def _rank(job: dict[str, Any]) -> None:
    """What every rank of the job does."""
    import numpy as np

    from toolkit import launch
    from toolkit.comm.world import MpiWorld, on_root
    from toolkit.graph import cache
    from toolkit.train.process import prepare_process
    from toolkit.train.trainer import Trainer, make_transport

    launch.install_excepthook()
    world = MpiWorld()
    base = _parse(job["config"], [])
    prepare_process(world, base.train.threads)
    part = on_root(world, lambda: cache.ensure(base, world.size)).load(world.rank)
    trainers = {}
    for name, overrides in job["variants"].items():
        config = _parse(job["config"], overrides)
        trainers[name] = Trainer(part, config, world, make_transport(world, config.method))
    told: dict[str, Any] = {name: {"epoch_s": [], "stages": []} for name in trainers}
    warm = {name: 0 for name in trainers}  # bytes sent in the warm-up
    for number in range(WARM_UP + job["repeats"]):
        for name, trainer in trainers.items():
            trainer.ledger.take_seconds()
            world.sum_in_place(np.zeros(1))
            begin = time.perf_counter()
            trainer.step(FIRST_EPOCH + number)
            seconds = time.perf_counter() - begin
            stages = {"/".join(map(str, key)): value for key, value in trainer.ledger.take_seconds().items()}
            if number < WARM_UP:
                warm[name] = trainer.ledger.phase_bytes("train")
            else:
                told[name]["epoch_s"].append(seconds)
                told[name]["stages"].append(stages)
    for name, trainer in trainers.items():
        told[name]["bytes"] = (trainer.ledger.phase_bytes("train") - warm[name]) // job["repeats"]
    if job["record"]:
        _record(world, trainers, told, Path(job["record"]))
    gathered = world.gather(told)
    if world.rank == 0:
        Path(job["out"]).write_text(json.dumps(gathered))


def _record(world: MpiWorld, trainers: dict[str, Trainer], told: dict[str, Any], folder: Path) -> None:
    """The workload of every contestant, and the costs of the network."""
    from simulator import machine
    from simulator import workload as workloads
    from toolkit.comm.calibrate import measure, sizes_between
    from toolkit.train.loop import medians
    from toolkit.train.traced import record_workload

    longest = 1
    for number, (name, trainer) in enumerate(trainers.items()):
        stages = [{_key(key): value for key, value in epoch.items()} for epoch in told[name]["stages"]]
        recorded = record_workload(trainer, world, medians(stages, told[name]["epoch_s"]), ())
        if recorded is not None:
            workloads.save(recorded, folder / f"{number}.npz")
            longest = max(longest, *(int(e.channel_bytes().max()) for e in recorded.exchanges))
    fits = measure(world.comm, sizes_between(1000, world.broadcast(longest)))
    if fits is not None:
        machine.write(machine.measured([f"nl{i + 1}" for i in range(world.size)], fits), folder / "machine.toml")


def _key(text: str) -> Any:
    stage, layer, direction = text.split("/")
    return stage, int(layer), direction


def _parse(toml: str, overrides: Sequence[str]) -> configs.Config:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(toml)
        file.flush()
        return configs.load(file.name, list(overrides))


def plain(measured: Mapping[str, Measured]) -> dict[str, Any]:
    """For a filed result."""
    return {name: dataclasses.asdict(value) for name, value in measured.items()}


if __name__ == "__main__":
    _rank(json.loads(sys.argv[1]))
