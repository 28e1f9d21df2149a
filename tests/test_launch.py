"""Real jobs of 2 ranks under both launchers: exit codes, last words, environment, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from toolkit import launch
from toolkit.errors import UserError

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parent.parent
NOISE = ("mpirun", "MPI_ABORT", "horovodrun", "[1,0]", "-----")


@pytest.fixture(params=["mpirun", "horovodrun"])
def launcher(request: pytest.FixtureRequest) -> str:
    if request.param not in launch.available_launchers():
        if os.environ.get("BITRING_HOROVOD") == "require" or request.param == "mpirun":
            pytest.fail(f"{request.param} is asked for and not there")
        pytest.skip(f"no {request.param}")
    return str(request.param)


def clean_env(**extra: str) -> dict[str, str]:
    """As a user's shell has it: nothing that CI or make sets for MPI."""
    dropped = ("OMPI_", "PMIX_", "PRTE_", "OMP_", "MALLOC_", "BITRING_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)} | extra


def start(arguments: list[str], ranks: int, launcher: str, module: str, **env: str) -> subprocess.Popen[str]:
    call = f"launch({arguments}, {ranks}, {launcher!r}, {module!r})"
    code = f"import sys; from toolkit.launch import launch; sys.exit({call})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=clean_env(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    arguments: list[str], launcher: str, ranks: int = 2, module: str = "tests.ranks.leaves"
) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `launch` called by a process of its own."""
    job = start(arguments, ranks, launcher, module)
    out, err = job.communicate(timeout=50)
    return job.returncode, out, err


def processes_of(marker: str) -> list[int]:
    return [pid for pid in launch._processes_with(f"BITRING_TEST={marker}") if pid != os.getpid()]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_code_and_sentence_come_through(launcher: str, code: int) -> None:
    sentence = "it's $HOME; a sentence" if code else ""
    returned, out, err = run(["all", str(code), sentence], launcher)
    assert returned == code
    assert err == (sentence + "\n" if code else "")  # once, and nothing of the launcher's own
    assert sorted(out.splitlines()) == [f"rank {r} of 2 with {[str(code), sentence]}" for r in (0, 1)]


def test_rank_that_fails_alone_ends_the_job(launcher: str) -> None:
    code, _, err = run(["lone"], launcher)
    assert (code, err) == (2, "only rank 1 says so (rank 1)\n")


def test_uncaught_exception_ends_the_job(launcher: str) -> None:
    code, _, err = run(["raises"], launcher)
    assert code == 1
    assert "ValueError: rank 1 raises" in err
    assert not any(word in err for word in NOISE)


def test_excepthook_names_the_rank_and_spares_the_frames_of_runpy() -> None:
    code, _, err = run(["hook"], "mpirun")
    assert code == 1
    assert err.startswith("rank 1: Traceback")
    assert err.endswith("ValueError: rank 1 raises under the hook\n")
    assert "runpy" not in err


def test_killed_rank_is_named() -> None:
    code, _, err = run(["killed"], "mpirun")
    assert code == 128 + signal.SIGKILL
    assert err == "bitring: a rank was killed by SIGKILL; the host may be out of memory\n"


def test_signal_leaves_no_orphans(launcher: str) -> None:
    number = signal.SIGTERM if launcher == "mpirun" else signal.SIGINT
    marker = f"{os.getpid()}-{time.monotonic_ns()}"
    job = start(["busy"], 2, launcher, "tests.ranks.leaves", BITRING_TEST=marker)
    assert job.stdout is not None
    assert "rank" in job.stdout.readline()  # the ranks run
    assert len(processes_of(marker)) >= 4
    job.send_signal(number)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 128 + number
    assert processes_of(marker) == []
    assert "Traceback" not in err


def test_sigkill_of_the_launching_process_ends_the_ranks(launcher: str) -> None:
    marker = f"{os.getpid()}-{time.monotonic_ns()}"
    job = start(["sleeps"], 2, launcher, "tests.ranks.leaves", BITRING_TEST=marker)
    assert job.stdout is not None
    assert "rank" in job.stdout.readline()
    job.kill()
    deadline = time.monotonic() + 15
    while processes_of(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(marker) == []
    job.communicate(timeout=5)


def test_timeout(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.launch(["sleeps"], 2, "mpirun", "tests.ranks.leaves", timeout_s=1.5) == launch.TIMED_OUT
    assert "stopped after 1.5 s" in capfd.readouterr().err


def test_ranks_get_arguments_and_environment(launcher: str, tmp_path: Path) -> None:
    arguments = ["two words", 'quo"te', "$(x)", "--set", "a.b=[1, 2]", ""]
    code, _, err = run([str(tmp_path), *arguments], launcher, module="tests.ranks.tells")
    assert (code, err) == (0, "")
    for rank in (0, 1):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["argv"] == arguments
        assert told["job"] == told["world"] == [rank, 2]
        assert told["toolkit"] == launch.__file__
        assert told["env"]["OMP_NUM_THREADS"] == str(max(1, launch.cores() // 2))
        assert told["env"]["BITRING_TTY"] == "0"


def test_more_ranks_than_cores_without_activated_environment(tmp_path: Path) -> None:
    ranks = launch.cores() + 3
    code, _, err = run([str(tmp_path)], "mpirun", ranks, "tests.ranks.tells")
    assert (code, err) == (0, "")
    assert len(list(tmp_path.iterdir())) == ranks


def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "0")
    env = launch.environment(1000)
    assert (env["OMP_NUM_THREADS"], env["OMPI_MCA_mpi_yield_when_idle"]) == ("3", "0")


def test_root_is_allowed_only_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in launch.environment(2)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert launch.environment(2)["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


@pytest.mark.parametrize("name", ["auto", "mpirun", "horovodrun"])
def test_no_mpi_is_refused_with_the_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "search_path", lambda: "/nowhere")
    assert launch.available_launchers() == []
    with pytest.raises(UserError, match=r"no mpirun .*make setup.*openmpi-bin"):
        launch.launch([], 2, name)


def test_no_horovodrun_is_refused_and_auto_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    find = launch._find
    monkeypatch.setattr(launch, "_find", lambda program: None if program == "horovodrun" else find(program))
    assert launch.available_launchers() == ["mpirun"]
    with pytest.raises(UserError, match=r"horovodrun is not installed.*--launcher mpirun"):
        launch.launch([], 2, "horovodrun")
    assert Path(launch._launcher_command("auto", 2)[0]).name == "mpirun"


def test_launcher_that_does_not_start_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "horovodrun"
    broken.write_text("#!/nonexistent/python\n")
    broken.chmod(0o755)
    find = launch._find
    monkeypatch.setattr(launch, "_find", lambda program: str(broken) if program == "horovodrun" else find(program))
    monkeypatch.setattr(launch, "available_launchers", lambda: ["horovodrun", "mpirun"])
    with pytest.raises(UserError, match=r"can.t start .*horovodrun: No such file"):
        launch.launch([], 2, "horovodrun")


@pytest.mark.parametrize(
    ("ranks", "name", "sentence"), [(0, "auto", "0 ranks .* >= 1"), (2, "mpirum", "did you mean 'mpirun'")]
)
def test_bad_arguments_are_refused(ranks: int, name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        launch.launch([], ranks, name)


def test_no_job_inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    with pytest.raises(UserError, match="rank 3 of an MPI job of 4 already"):
        launch.launch([], 2)


@pytest.mark.parametrize(
    ("variables", "size", "rank"),
    [
        ({}, None, 0),
        ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"}, 3, 2),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, 2, 1),
        ({"PMIX_RANK": "1", "SLURM_NTASKS": "8"}, 8, 1),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None, 0),  # sbatch's shell is no rank
    ],
)
def test_job_size(variables: dict[str, str], size: int | None, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", variables)
    assert (launch.job_size(), launch.job_rank()) == (size, rank)


@pytest.mark.parametrize("variable", [{"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}, {"HOROVOD_CONTROLLER": "gloo"}])
def test_gloo_is_refused(variable: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", variable)
    with pytest.raises(UserError, match=r"--gloo .* without an MPI job"):
        launch.refuse_gloo()
    monkeypatch.setattr(os, "environ", variable | {"OMPI_COMM_WORLD_SIZE": "2"})
    launch.refuse_gloo()


def test_real_gloo_job_is_refused() -> None:
    if "horovodrun" not in launch.available_launchers():
        pytest.skip("no horovodrun")
    code = "from toolkit import launch; launch.refuse_gloo(); print('accepted')"
    command = [str(launch._find("horovodrun")), "--gloo", "-np", "2", sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, env=clean_env(), capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode != 0
    assert "start with `horovodrun --mpi`" in result.stdout + result.stderr
    assert "accepted" not in result.stdout


def test_importing_launch_imports_neither_torch_nor_mpi() -> None:
    code = "import sys, toolkit.launch; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'mpi4py')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_leave_outside_a_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(launch.EXIT_FILE, raising=False)
    for code in (0, 2):
        with pytest.raises(SystemExit) as left:
            launch.leave(code, "words" if code else "")
        assert left.value.code == code
    assert capsys.readouterr().err == "words\n"


def test_plain_mpirun_without_our_launcher_keeps_the_code() -> None:
    env: dict[str, Any] = launch.environment(2)
    env.pop(launch.EXIT_FILE, None)
    command = [str(launch._find("mpirun")), "-np", "2", sys.executable, "-m", "tests.ranks.leaves", "all", "2", "words"]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 2
    assert result.stderr.count("words") == 1
