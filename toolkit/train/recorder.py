"""The run folder: configuration, versions, one line of metrics an epoch."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from toolkit import config as configs
from toolkit import launch
from toolkit.errors import UserError

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
            (path / "config.toml").write_text(configs.to_toml(config), encoding="utf-8")
            self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)
        except FileExistsError:
            if not path.is_dir():
                raise UserError(f"{path} is a file; name a folder with --run-dir") from None
            raise UserError(f"{path} holds a run already; name another folder with --run-dir") from None
        except OSError as error:
            raise UserError(
                f"can't write the run folder {path}: {error.strerror}; name another with --run-dir"
            ) from None
        self.path = path

    def write(self, kind: str, **values: Any) -> None:
        """One object a line; NaN (a split without nodes) becomes null."""
        line = {"schema_version": METRICS_VERSION, "kind": kind, **_plain(values)}
        with self.guarded():
            self._metrics.write(json.dumps(line) + "\n")

    def close(self) -> None:
        with self.guarded():
            self._metrics.close()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A full or vanished disk is told in a sentence; what was written before stays."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"can't write to the run folder {self.path}: {error.strerror}; what is there so far is kept"
            ) from None


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
        "cores": launch.cores(),
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
