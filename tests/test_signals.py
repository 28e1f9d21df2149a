"""Real runs that are asked to stop: by schedulers, by people, under every launcher, and go on afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_launch import ROOT, clean_env, processes_of
from toolkit import launch
from toolkit.train import state as states

pytestmark = pytest.mark.timeout(120)
DIGITS = "examples/digits.toml"
FOREVER = ["--set", "train.epochs=1000000", "--set", "model.hidden=8"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


class Run:
    """A run of `bitring train` without end, some epochs on its way."""

    def __init__(self, folder: Path, cache: str, *command: str, more: tuple[str, ...] = ()) -> None:
        self.folder, self.marker = folder, f"{os.getpid()}-{time.monotonic_ns()}"
        root = {k: v for k, v in launch.environment(2).items() if k.startswith(("OMPI_", "PRTE_", "PATH"))}
        self.job = subprocess.Popen(
            [*command, "train", DIGITS, *FOREVER, "--run-dir", str(folder), *more],
            cwd=ROOT,
            env=clean_env(BITRING_CACHE=cache, BITRING_TEST=self.marker, **root),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while self.lines() < 3 and self.job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.lines() >= 3, self.job.stderr.read() if self.job.poll() is not None and self.job.stderr else ""

    def lines(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def end(self) -> tuple[int, str]:
        """Exit code and stderr; nothing is left behind."""
        _, err = self.job.communicate(timeout=60)
        assert processes_of(self.marker) == []
        return self.job.returncode, err

    def saved_at_its_end(self) -> bool:
        """Whether the last epoch that was trained is in the checkpoint."""
        return states.newest(self.folder).epochs == self.lines()


PYTHON = (sys.executable, "-P", "-m", "toolkit.cli")


@pytest.mark.parametrize("launcher", ["one process", "mpirun", "horovodrun"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_run_is_saved_and_leaves(launcher: str, number: signal.Signals, cache: str, tmp_path: Path) -> None:
    if launcher == "horovodrun" and "horovodrun" not in launch.available_launchers():
        pytest.skip("no horovodrun")
    more = () if launcher == "one process" else ("-np", "2", "--launcher", launcher)
    run = Run(tmp_path / "run", cache, *PYTHON, more=more)
    run.job.send_signal(number)
    code, err = run.end()
    assert code == 128 + number
    assert err.endswith(f"{number.name}: the epoch is finished and saved; continue with --resume {tmp_path / 'run'}\n")
    assert "Traceback" not in err
    assert run.saved_at_its_end()


def test_it_goes_on_without_configuration_and_ranks(cache: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", cache, *PYTHON, more=("-np", "2", "--launcher", "mpirun"))
    run.job.send_signal(signal.SIGTERM)
    run.end()
    epochs = run.lines() + 5
    command = [*PYTHON, "train", "--resume", str(run.folder), "--set", f"train.epochs={epochs}"]
    again = subprocess.run(
        command, cwd=ROOT, env=clean_env(BITRING_CACHE=cache), capture_output=True, text=True, timeout=60, check=False
    )
    assert again.returncode == 0, again.stderr
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == list(range(epochs))
    assert json.loads((run.folder / "run.json").read_text())["resumed"][0]["ranks"] == 2


def test_ctrl_c_twice_ends_at_once(cache: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", cache, *PYTHON, more=("-np", "2", "--set", "train.eval_every=100000"))
    for rank in launch._ranks_with(f"BITRING_TEST={run.marker}"):
        os.kill(rank, signal.SIGSTOP)  # an epoch that does not end
    run.job.send_signal(signal.SIGINT)
    time.sleep(1)
    assert run.job.poll() is None
    begin = time.monotonic()
    run.job.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert time.monotonic() - begin < 5


def test_ranks_that_take_too_long_are_ended(cache: str, tmp_path: Path) -> None:
    more = ("-np", "2", "--set", "run.grace_s=1", "--set", "run.timeout_s=0")
    run = Run(tmp_path / "run", cache, *PYTHON, more=more)
    os.kill(launch._ranks_with(f"BITRING_TEST={run.marker}")[0], signal.SIGSTOP)
    begin = time.monotonic()
    run.job.send_signal(signal.SIGTERM)
    assert run.end()[0] == 143
    assert time.monotonic() - begin < 1 + launch._GRACE_S + 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_under_the_users_own_mpirun(number: signal.Signals, cache: str, tmp_path: Path) -> None:
    """mpirun passes SIGUSR1 on; at SIGTERM it sends its ranks SIGTERM a second later, and SIGKILL after another."""
    mpirun = (str(launch._find("mpirun")), "-np", "2", "bitring")
    run = Run(tmp_path / "run", cache, *mpirun)
    run.job.send_signal(number)
    code, err = run.end()
    assert f"{number.name}: the epoch is finished and saved" in err
    assert code == (138 if number == signal.SIGUSR1 else 1)  # Open MPI's own when it is told to end
    assert run.saved_at_its_end()


def test_a_signal_to_any_one_rank_under_the_users_own_horovodrun(cache: str, tmp_path: Path) -> None:
    if "horovodrun" not in launch.available_launchers():
        pytest.skip("no horovodrun")
    run = Run(tmp_path / "run", cache, str(launch._find("horovodrun")), "--mpi", "-np", "2", "bitring")
    os.kill(max(launch._ranks_with(f"BITRING_TEST={run.marker}")), signal.SIGUSR1)
    code, err = run.end()
    assert code != 0
    assert "SIGUSR1: the epoch is finished and saved" in err
    assert run.saved_at_its_end()


def test_two_runs_at_work_in_one_folder(cache: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", cache, *PYTHON)
    command = [*PYTHON, "train", "--resume", str(run.folder)]
    second = subprocess.run(
        command, cwd=ROOT, env=clean_env(BITRING_CACHE=cache), capture_output=True, text=True, timeout=60, check=False
    )
    run.job.kill()
    run.end()
    assert second.returncode == 2
    assert f"bitring: another run is at work in {run.folder} (process {run.job.pid} on " in second.stderr
