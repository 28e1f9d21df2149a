"""TensorBoard on request, with the real writer: what its own reader finds equals metrics.jsonl."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from toolkit import config as configs
from toolkit.comm.world import Solo
from toolkit.commands.train import train
from toolkit.errors import UserError
from toolkit.train.board import curves
from toolkit.train.recorder import RunFolder
from toolkit.train.trainer import Trainer

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parent.parent
EPOCHS = 7


def configuration(tmp_path: Path, **run: Any) -> configs.Config:
    return configs.from_tables(
        {
            "run": {"tensorboard": True, **run},
            "partition": {"cache": str(tmp_path / "cache"), "tries": 1},
            "model": {"hidden": 8},
            "train": {"epochs": EPOCHS, "threads": 1, "eval_every": 2, "checkpoint_every": 3},
        }
    )


def start(config: configs.Config, folder: Path, seeds: int | None = None) -> int:
    return train(Solo(), config, argparse.Namespace(run_dir=str(folder), seeds=seeds, resume=None))


def resume(config: configs.Config, folder: Path) -> int:
    return train(Solo(), config, argparse.Namespace(run_dir=None, seeds=None, resume=str(folder)))


def written(folder: Path, seed: int) -> dict[str, dict[int, float]]:
    """Curves of metrics.jsonl: tag -> epoch -> value."""
    found: dict[str, dict[int, float]] = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line.pop("kind") == "epoch" and line["seed"] == seed:
            del line["schema_version"]
            for tag, value in curves(line):
                found.setdefault(tag, {})[line["epoch"]] = value
    return found


def shown(folder: Path, seed: int) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard's reader makes of the event files: tag -> (epoch, value)."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(folder / "tensorboard" / f"seed-{seed}"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def same(folder: Path, seed: int) -> None:
    """Every number of metrics.jsonl is on the board once, and no other."""
    expected, found = written(folder, seed), shown(folder, seed)
    assert found.keys() == expected.keys()
    for tag, points in found.items():
        assert [step for step, _ in points] == sorted(expected[tag]), tag
        assert all(math.isclose(value, expected[tag][step], rel_tol=1e-6) for step, value in points), tag


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A crash before this process's epoch number ``at`` from now."""
    step, seen = Trainer.step, [0]

    def step_or_crash(self: Trainer, epoch: int) -> Any:
        seen[0] += 1
        if seen[0] == at:
            raise KeyboardInterrupt
        return step(self, epoch)

    monkeypatch.setattr(Trainer, "step", step_or_crash)


def test_the_board_shows_what_metrics_hold(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    threads = threading.active_count()
    assert start(configuration(tmp_path), tmp_path / "run", seeds=2) == 0
    for seed in (0, 1):
        same(tmp_path / "run", seed)
    found = shown(tmp_path / "run", 0)
    for tag in ("train_loss", "train/accuracy", "val/accuracy", "test/accuracy", "epoch_s", "rank0_stages_s/central"):
        assert tag in found
    assert [step for step, _ in found["train_loss"]] == list(range(EPOCHS))
    assert [step for step, _ in found["val/loss"]] == [1, 3, 5, 6], "evaluations alone"
    assert threading.active_count() == threads, "no writer's thread is left"


@pytest.mark.parametrize("crash", [6, EPOCHS + 2])  # after epochs not saved; in seed 1, before its first checkpoint
def test_no_epoch_is_shown_twice_after_resume(crash: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    config, folder = configuration(tmp_path), tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, crash)
        with pytest.raises(KeyboardInterrupt):
            start(config, folder, seeds=2)
    last_seed = crash // EPOCHS
    before = shown(folder, last_seed)["train_loss"]
    assert len(before) == (crash - 1) % EPOCHS, "every epoch was flushed, those after the checkpoint too"
    time.sleep(1)  # event files are read by the order of their names, which tell seconds
    assert resume(config, folder) == 0
    for seed in (0, 1):
        same(folder, seed)
        assert len(shown(folder, seed)["train_loss"]) == EPOCHS
    files = list((folder / "tensorboard" / f"seed-{last_seed}").iterdir())
    assert len(files) == 2, "the old file stays, hidden in part"


def test_a_full_disk_is_told_in_a_sentence_and_by_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    aborted: list[object] = []
    monkeypatch.setattr(threading, "excepthook", aborted.append)  # in a job, this one ends it
    folder = RunFolder(tmp_path / "run", configuration(tmp_path), 1, [])
    folder.write("epoch", seed=0, epoch=0, train_loss=1.0)
    (events,) = (tmp_path / "run" / "tensorboard" / "seed-0").iterdir()
    events.unlink()
    events.symlink_to("/dev/full")
    said = r"can't write to the run folder .*run: No space left on device; what is there so far is kept"
    with pytest.raises(UserError, match=said):
        folder.write("epoch", seed=0, epoch=1, train_loss=0.5)
    with pytest.raises(UserError, match=said):
        folder.close()
    assert aborted == []
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    RunFolder.reopen(tmp_path / "run").close()  # neither the lock nor metrics.jsonl is held

    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    assert len(aborted) == 1, "other threads' errors go where they went"


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = RunFolder(tmp_path / "run", configuration(tmp_path), 1, [])
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    with pytest.raises(UserError, match="can't write to the run folder"):
        folder.write("epoch", seed=0, epoch=0, train_loss=1.0)
    folder.close()


def test_without_the_package_it_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    """The interpreter is told that there is no tensorboard: runs that don't ask for it never notice."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "hidden = lambda c, name, *a: None if name.split('.')[0] == 'tensorboard' else find(name, *a)\n"
        "m.PathFinder.find_spec = classmethod(hidden)\n"
    )

    def bitring(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "BITRING_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "toolkit.cli", "train", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=env, cwd=ROOT)

    run = ["examples/digits.toml", "--run-dir", str(tmp_path / "run"), "--set", "train.epochs=2"]
    refused = bitring(*run, "--set", "run.tensorboard=true")
    assert refused.returncode == 2, refused.stderr
    last = refused.stderr.splitlines()[-1]
    assert last == (
        "bitring: run.tensorboard is true, and TensorBoard's writer can't be imported (No module named 'tensorboard'); "
        "pip install tensorboard, or set run.tensorboard = false"
    )
    assert "Traceback" not in refused.stderr and not (tmp_path / "run").exists()
    plain = bitring(*run)
    assert plain.returncode == 0, plain.stderr
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_null_is_no_point_and_keys_become_tags() -> None:
    line = {"seed": 3, "epoch": 4, "train_loss": 0.5, "val": {"loss": None, "accuracy": 1.0}, "a": {"b": {"c": 2}}}
    assert dict(curves(line)) == {"train_loss": 0.5, "val/accuracy": 1.0, "a/b/c": 2}
