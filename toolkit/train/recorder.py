"""The run folder: configuration, versions, one line of metrics an epoch."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from simulator import machine
from simulator.machine import Machine
from toolkit import config as configs
from toolkit import launch
from toolkit.errors import UserError
from toolkit.train.board import Board

log = logging.getLogger("bitring")
METRICS_VERSION = 1
PACKAGES = ("torch", "numpy", "scipy", "mpi4py", "horovod", "pymetis")


class RunFolder:
    """Where a run leaves what it did. Only rank 0 has one, and only one run at a time."""

    def __init__(self, path: Path, config: configs.Config, ranks: int, notes: list[str]) -> None:
        self.path = path
        self._board = _board(path, config)  # first: without tensorboard, no folder is left behind
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = lock(path)
            # "x": of two runs that are given one folder, one gets it
            with (path / "run.json").open("x", encoding="utf-8") as file:
                self._about = describe_run(config, ranks, notes)
                json.dump(self._about, file, indent=1)
            (path / "config.toml").write_text(configs.to_toml(config), encoding="utf-8")
            self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)
        except FileExistsError:
            if not path.is_dir():
                raise UserError(f"{path} is a file; name a folder with --run-dir") from None
            raise UserError(
                f"{path} holds a run already; name another folder with --run-dir, or continue it with --resume {path}"
            ) from None
        except OSError as error:
            raise UserError(
                f"can't write the run folder {path}: {error.strerror}; name another with --run-dir"
            ) from None

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run, held and left as it is; `go_on` before writing."""
        folder = cls.__new__(cls)
        folder.path, folder._board = path, None
        try:
            folder._lock = lock(path)
            folder._about = json.loads((path / "run.json").read_text(encoding="utf-8"))
            folder._about.setdefault("resumed", [])
            folder._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)
        except (OSError, ValueError, AttributeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its run.json describes no run"
            raise UserError(f"can't continue in the run folder {path}: {reason}") from None
        return folder

    def go_on(self, config: configs.Config, ranks: int, epochs: int, metrics_bytes: int) -> None:
        """Back to the moment of a checkpoint, ``epochs`` and ``metrics_bytes``: later lines will be written again."""
        self._board = _board(self.path, config)
        now = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "host": platform.node(), "ranks": ranks}
        self._about["resumed"].append(now | {"epochs": epochs})
        with self.guarded():
            replace_text(self.path / "run.json", json.dumps(self._about, indent=1))
            replace_text(self.path / "config.toml", configs.to_toml(config))
            if self.metrics_bytes() < metrics_bytes:
                raise UserError(
                    f"{self.path / 'metrics.jsonl'} is shorter than when the checkpoint was written; "
                    "restore it, or start a new run"
                )
            self._metrics.truncate(metrics_bytes)

    def metrics_bytes(self) -> int:
        """Length of metrics.jsonl now."""
        with self.guarded():
            self._metrics.flush()
            return os.fstat(self._metrics.fileno()).st_size

    def write(self, kind: str, **values: Any) -> None:
        """One object a line; NaN (a split without nodes) becomes null."""
        values = _plain(values)
        line = {"schema_version": METRICS_VERSION, "kind": kind, **values}
        with self.guarded():
            self._metrics.write(json.dumps(line) + "\n")
            if self._board is not None and kind == "epoch":
                self._board.add(values)

    def keep_machine(self, found: Machine) -> None:
        """machine.toml: what a message cost between every pair of ranks when it was measured last."""
        with self.guarded():
            machine.write(found, self.path / "machine.toml")

    def close(self) -> None:
        with self.guarded(), contextlib.ExitStack() as stack:  # each is closed, whatever the others say
            for opened in (self._lock, self._metrics, self._board):
                if opened is not None:
                    stack.callback(opened.close)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """A full or vanished disk is told in a sentence; what was written before stays."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"can't write to the run folder {self.path}: {error.strerror}; what is there so far is kept"
            ) from None


def lock(path: Path) -> TextIO:
    """Hold the folder's lock until the file is closed, or this process dies. UserError when another run holds it."""
    file = (path / ".lock").open("a+", encoding="utf-8", errors="replace")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).strip()
        file.close()
        raise UserError(
            f"another run is at work in {path} ({holder or 'unknown'}); wait for its end, or name another folder"
        ) from None
    except OSError as error:  # a file system without locks
        log.warning("%s can't be locked (%s): see to it that no other run is given this folder", path, error.strerror)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    return file


def is_finished(path: Path) -> bool:
    """Whether the run in a folder has written its summary: the last line of metrics.jsonl."""
    try:
        lines = (path / "metrics.jsonl").read_bytes().splitlines()
        return bool(lines) and json.loads(lines[-1]).get("kind") == "summary"
    except (OSError, ValueError, AttributeError):
        return False


def replace_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _board(path: Path, config: configs.Config) -> Board | None:
    return Board(path / "tensorboard") if config.run.tensorboard else None


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
