"""The run folder: configuration, versions, one line of metrics an epoch, the workload."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulator.workload import Exchange, Workload
from toolkit import config as configs
from toolkit.comm.world import World
from toolkit.errors import UserError
from toolkit.graph.part import Part
from toolkit.nn.sparse import gcn_coefficients, mean_coefficients
from toolkit.plan import LayerStep, travelling
from toolkit.train.trainer import Trainer

METRICS_VERSION = 1
PACKAGES = ("torch", "numpy", "scipy", "mpi4py", "horovod", "pymetis")


class RunFolder:
    """Where a run leaves what it did. Only rank 0 has one."""

    def __init__(self, path: Path, config: configs.Config, ranks: int, notes: list[str]) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            # "x": of two runs that are given one folder, one gets it
            with (path / "run.json").open("x", encoding="utf-8") as file:
                json.dump(describe_run(config, ranks, notes), file, indent=1)
        except FileExistsError:
            raise UserError(f"{path} holds a run already; name another folder with --run-dir") from None
        except OSError as error:
            raise UserError(
                f"can't write the run folder {path}: {error.strerror}; name another with --run-dir"
            ) from None
        (path / "config.toml").write_text(configs.to_toml(config), encoding="utf-8")
        self.path = path
        self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)

    def write(self, kind: str, **values: Any) -> None:
        """One object a line; NaN (a split without nodes) becomes null."""
        line = {"schema_version": METRICS_VERSION, "kind": kind, **_plain(values)}
        self._metrics.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._metrics.close()


def default_run_dir(run: configs.Run) -> Path:
    return Path(run.out) / f"{run.name}-{datetime.now():%Y%m%d-%H%M%S-%f}"


def describe_run(config: configs.Config, ranks: int, notes: list[str]) -> dict[str, Any]:
    """run.json: what it takes to tell two runs apart later."""
    return {
        "schema_version": METRICS_VERSION,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "ranks": ranks,
        "seed": config.run.seed,
        "host": platform.node(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "notes": notes,
    }


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


class RangeRecorder:
    """(max - min)^2 of every row that this rank sends, per layer and direction."""

    def __init__(self) -> None:
        self.traced: dict[tuple[int, str], NDArray[np.float64]] = {}

    def __call__(self, step: LayerStep, backward: bool, rows: Tensor) -> None:
        spread = (rows.amax(1) - rows.amin(1)).double() if len(rows) else torch.zeros(0, dtype=torch.float64)
        self.traced[step.layer, "backward" if backward else "forward"] = spread.square().numpy()


def record_workload(
    trainer: Trainer, world: World, stage_medians_s: dict[str, float], notes: list[str]
) -> Workload | None:
    """One more pass with rows traced, gathered into a Workload at rank 0; it changes no weight and no count."""
    recorder = RangeRecorder()
    engine, ledger = trainer.engine, trainer.ledger
    counted = {key: sent.copy() for key, sent in ledger.sent.items()}
    gradient_bytes = ledger.weight_gradient_bytes
    engine.trace = recorder
    trainer.gradients(epoch=trainer.config.train.epochs)
    engine.trace = None

    part = engine.part
    alphas = {step.layer: alpha_squared(part, engine.kind, step) for step in engine.plan.train}
    counts = {
        step.layer: (engine.routes["train", step.layer].send_counts, engine.routes["train", step.layer].receive_counts)
        for step in engine.plan.train
    }
    row_bytes = sum(int(sent.sum()) for (phase, _, _), sent in ledger.sent.items() if phase == "train")
    row_bytes -= sum(int(sent.sum()) for (phase, _, _), sent in counted.items() if phase == "train")
    ledger.sent, ledger.weight_gradient_bytes = counted, gradient_bytes
    codec_s = stage_medians_s.get("encode", 0.0) + stage_medians_s.get("decode", 0.0)
    codec_s_per_byte = codec_s / row_bytes if row_bytes else 0.0
    everyone = world.gather((recorder.traced, alphas, counts, stage_medians_s, codec_s_per_byte))
    if everyone is None:
        return None
    return Workload(
        ranks=world.size,
        exchanges=_exchanges(trainer, everyone),
        central_s=np.array([stages.get("central", 0.0) for *_, stages, _ in everyone]),
        marginal_s=np.array([stages.get("marginal", 0.0) for *_, stages, _ in everyone]),
        dense_s=np.array([stages.get("dense", 0.0) for *_, stages, _ in everyone]),
        codec_s_per_byte=np.array([per_byte for *_, per_byte in everyone]),
        weight_gradient_bytes=trainer.gradient_bytes,
        weight_gradient_s=float(np.median([stages.get("weight_gradients", 0.0) for *_, stages, _ in everyone])),
        transport=f"{trainer.config.method.transport}:{trainer.config.method.ring}",
        graph=part.graph_name,
        notes=tuple(notes),
    )


def alpha_squared(part: Part, kind: str, step: LayerStep) -> NDArray[np.float64]:
    """Sum of squared coefficients from each halo row that arrives to the targets that matter: [h']."""
    arrives = travelling(part.halo_reach, step)
    if kind == "gat":
        return np.full(int(arrives.sum()), np.nan)
    matrix = (gcn_coefficients(part) if kind == "gcn" else mean_coefficients(part))[:, part.num_inner :]
    if step.max_reach is not None:
        matrix = matrix[part.hops <= step.max_reach]
    return np.asarray(matrix.multiply(matrix).sum(axis=0)).ravel()[arrives].astype(np.float64)


def _exchanges(trainer: Trainer, everyone: list[Any]) -> tuple[Exchange, ...]:
    """Put every rank's lists in the order of a Workload: by sender, then receiver, then node."""
    size = len(everyone)
    exchanges = []
    for step in trainer.engine.plan.train:
        if step.sends == "nothing":
            continue
        forward = np.array([counts[step.layer][0] for _, _, counts, _, _ in everyone])
        alphas = [np.split(a[step.layer], np.cumsum(c[step.layer][1])[:-1]) for _, a, c, _, _ in everyone]
        common = {
            "layer": step.layer,
            "row_entries": step.entries,
            "bits": 8 * trainer.engine.codec.row_bytes(1),
        }
        exchanges.append(
            Exchange(
                direction="forward",
                rows=forward,
                range_squared=np.concatenate([traced[step.layer, "forward"] for traced, *_ in everyone]),
                alpha_squared=np.concatenate([alphas[r][s] for s in range(size) for r in range(size)]),
                **common,
            )
        )
        if step.backward:
            exchanges.append(
                Exchange(
                    direction="backward",
                    rows=forward.T.copy(),
                    range_squared=np.concatenate([traced[step.layer, "backward"] for traced, *_ in everyone]),
                    alpha_squared=np.ones(int(forward.sum())),
                    **common,
                )
            )
    return tuple(exchanges)
