"""A rank that is killed, stopped, raises or gets out of step ends the whole job, in time, with one message."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_launch import NOISE, ROOT, clean_env, launcher, processes_of, start  # noqa: F401
from toolkit import launch
from toolkit.comm import position
from toolkit.comm.position import Position, first_difference
from toolkit.comm.watch import Process

pytestmark = pytest.mark.timeout(120)
RANKS = 3
WITHIN_S = 15
# what the faulty rank is doing: epoch 3, layer 2, backward, round 1 (tests/ranks/fails.py)
LAYER = "epoch 3, layer 2, backward"
WHERE = f"{LAYER}, round 1"
SENTENCES = {
    "killed": rf"bitring: rank {{rank}} died \(killed, out of memory, or crashed\), in {WHERE}, computing; "
    rf"rank {{other}} is in {LAYER}, round \d, [a-z ]+; the job is ended\n",
    "stopped": rf"bitring: rank {{rank}} is stopped \(SIGSTOP\) for \d+ s, in {WHERE}, computing; "
    rf"rank {{other}} is in {LAYER}, round \d, in the exchange of rows; the job is ended\n",
    "elsewhere": rf"bitring: ranks have waited in different operations for \d+ s: rank {{rank}} in {WHERE}, in a "
    rf"broadcast of rank 0; ranks {{rest}} in {LAYER}, round \d, in the exchange of rows; the job is ended\n",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def fail(
    how: str, rank: int, by: str, cache: str, tmp_path: Path, *more: str, timeout_s: float = 3, **env: str
) -> tuple[int, str]:
    """Exit code and stderr of a job in which ``rank`` fails; asserts that it ends in time and leaves nothing behind."""
    marker = f"{tmp_path.name}-{time.monotonic_ns()}"
    arguments = [how, str(rank), str(timeout_s), str(tmp_path / "mark"), *more]
    job = start(arguments, RANKS, by, "tests.ranks.fails", BITRING_TEST=marker, BITRING_CACHE=cache, **env)
    _, err = job.communicate(timeout=100)
    took_s = time.time() - float((tmp_path / "mark").read_text())
    assert processes_of(marker) == []
    assert took_s < WITHIN_S, f"{took_s:.1f} s"
    return job.returncode, err


# a root does not wait in its own broadcast
@pytest.mark.parametrize(
    ("how", "rank"), [("killed", 1), ("killed", 0), ("stopped", 1), ("stopped", 0), ("elsewhere", 1), ("elsewhere", 2)]
)
def test_the_job_ends_with_one_sentence(how: str, rank: int, launcher: str, cache: str, tmp_path: Path) -> None:  # noqa: F811
    timeout_s = 10 if (rank, launcher) == (1, "mpirun") else 3  # 10 is the default of run.timeout_s
    code, err = fail(how, rank, launcher, cache, tmp_path, timeout_s=timeout_s)
    others = [r for r in range(RANKS) if r != rank]
    sentence = SENTENCES[how].format(rank=rank, other=others[0], rest=", ".join(map(str, others)))
    assert re.fullmatch(sentence, err), err
    assert code == launch.LOST


def test_a_rank_that_raises_says_where(launcher: str, cache: str, tmp_path: Path) -> None:  # noqa: F811
    code, err = fail("raises", 1, launcher, cache, tmp_path)
    assert code == 1
    assert err.startswith(f"rank 1 in {WHERE}, computing: Traceback")
    assert err.endswith("ValueError: in the middle of an exchange\n")
    assert err.count("Traceback") == 1
    assert not any(word in err for word in NOISE)


@pytest.mark.parametrize("how", ["stopped", "elsewhere"])
def test_between_hosts_positions_go_by_messages(how: str, cache: str, tmp_path: Path) -> None:
    code, err = fail(how, 1, "mpirun", cache, tmp_path, "messages")
    assert code == launch.LOST
    sentence = {
        "stopped": rf"rank 1 gives no sign of life for \d+ s, last heard of in .*; rank 0 is in {LAYER}",
        "elsewhere": rf"rank 1 in {WHERE}, in a broadcast of rank 0; ranks 0, 2 in {LAYER}",
    }
    assert re.search(sentence[how], err), err


def test_a_stopped_rank_0_is_seen_from_other_hosts(cache: str, tmp_path: Path) -> None:
    code, err = fail("stopped", 0, "mpirun", cache, tmp_path, "messages")
    assert code == launch.LOST
    assert re.fullmatch(
        rf"bitring: rank 0 gives no sign of life for \d+ s, last heard of in .*; rank 1 is in {LAYER}.*\n", err
    )


@pytest.mark.parametrize("how", ["late", "crunches"])
@pytest.mark.parametrize("rank", [0, 1])
def test_slowness_is_no_reason(how: str, rank: int, cache: str, tmp_path: Path) -> None:
    assert fail(how, rank, "mpirun", cache, tmp_path, timeout_s=1) == (0, "")


def test_horovods_alltoall_is_watched_too(cache: str, tmp_path: Path) -> None:
    if "horovodrun" not in launch.available_launchers():
        pytest.skip("no horovodrun")
    code, err = fail("elsewhere", 1, "horovodrun", cache, tmp_path, BITRING_TEST_TRANSPORT="horovod")
    assert code == launch.LOST
    assert f"rank 1 in {WHERE}, in a broadcast of rank 0" in err


@pytest.mark.parametrize("how", ["killed", "stopped", "elsewhere"])
def test_under_the_users_own_mpirun(how: str, cache: str, tmp_path: Path) -> None:
    env = launch.environment(RANKS) | {"BITRING_CACHE": cache}
    env.pop(launch.EXIT_FILE, None)
    arguments = [how, "1", "3", str(tmp_path / "mark")]
    command = [str(launch._find("mpirun")), "-np", str(RANKS), sys.executable, "-m", "tests.ranks.fails", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == (128 + signal.SIGKILL if how == "killed" else launch.LOST)
    assert result.stderr.count("bitring: ") == 1
    assert re.search(rf"bitring: rank.* 1 .*in {WHERE}", result.stderr)
    assert time.time() - float((tmp_path / "mark").read_text()) < WITHIN_S


def test_the_environment_of_tests_is_no_users(cache: str) -> None:
    assert not any(name.startswith("OMPI_") for name in clean_env())


def slot(*operations: tuple[str, int], waits: bool = True) -> Position:
    """The position of a rank after these operations."""
    before = position.here()
    position.move_to(position.empty())
    try:
        position.begin_epoch(4)
        for what, layer in operations:
            position.begin_exchange("train", layer, "forward")
            with position.waiting(what):  # type: ignore[arg-type]
                inside = Position.of(position.here())
        return inside if waits else Position.of(position.here())
    finally:
        position._here = before


def test_the_first_operation_that_differs_is_found() -> None:
    same = [("rows", 1), ("rows", 2), ("sum", 0)]
    assert first_difference({0: slot(*same), 1: slot(*same[:2]), 2: slot(*same)}) is None
    assert first_difference({0: slot(*same), 1: slot(*same, ("sum", 0))}) is None, "one step ahead is no difference"
    odd = {0: slot(*same), 1: slot(*same[:2], ("gather", 0)), 2: slot(*same, ("rows", 1))}
    assert first_difference(odd) == {1: odd[1]}
    assert list(first_difference({0: slot(("rows", 1)), 1: slot(("rows", 2))}) or ()) == [1], "of two, not rank 0"
    many = [("rows", n % 5) for n in range(100)]
    assert first_difference({0: slot(*many), 1: slot(*many, ("sum", 0))}) is None
    assert first_difference({0: slot(*many, ("rows", 0)), 1: slot(*many, ("sum", 0))}) is not None


def test_a_position_in_words() -> None:
    assert str(slot(("rows", 2))) == "epoch 5, layer 2, forward, round 1, in the exchange of rows"
    assert str(slot(("rows", 2), ("sum", 3), waits=False)) == "epoch 5, layer 3, forward, round 1, computing"
    assert str(Position.of(position.empty())) == "the start-up, computing"


def test_health_of_a_process(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    process = Process.of(child.pid)
    assert process.look() == "alive"
    time.sleep(0.3)
    process.look()
    assert process.look() == "silent", "it waits for input"
    child.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    assert process.look() == "stopped"
    assert Process(child.pid, process.started - 1).look() == "gone", "another process of that number"
    child.kill()
    time.sleep(0.1)
    assert process.look() == "gone", "even where its parent has not heard of it"
    child.communicate()
    assert process.look() == "gone"
