"""The command as people type it: help, refusals, jobs, golden output of the examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from toolkit import launch

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
DIGITS = str(ROOT / "examples" / "digits.toml")


def run(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return call(sys.executable, "-m", "toolkit.cli", *arguments, env=env, cwd=cwd)


def call(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    root = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    environment = os.environ | root | {"PATH": f"{BIN}:{os.environ['PATH']}"} | (env or {})
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, env=environment, cwd=cwd or ROOT
    )


@pytest.fixture
def cache(tmp_path: Path) -> list[str]:
    return ["--set", f"partition.cache={json.dumps(str(tmp_path / 'cache'))}", "--set", "train.epochs=6"]


def need_horovod() -> None:
    if "horovodrun" not in launch.available_launchers():
        if os.environ.get("BITRING_HOROVOD") == "require":
            pytest.fail("Horovod was asked for and is not installed")
        pytest.skip("Horovod is not installed")


def test_help_is_fast_and_names_every_command():
    begin = time.perf_counter()
    result = run("--help")
    assert time.perf_counter() - begin < 3, "help must not wait for torch"
    assert result.returncode == 0
    commands = ("train", "partition", "plan", "verify", "noise", "calibrate", "simulate", "data", "config")
    for command in (*commands, "tune", "place", "trace", "sweep", "methods", "doctor", "check"):
        assert re.search(rf"^ +{command}\b", result.stdout, re.MULTILINE)


def test_help_does_not_import_torch():
    code = "import sys, toolkit.cli; toolkit.cli.parser(); sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert call(sys.executable, "-c", code).returncode == 0


@pytest.mark.parametrize("command", ["config", "methods", "data list", "--help"])
def test_a_reader_that_stops_and_a_closed_output(command):
    for shell in (
        f"{sys.executable} -m toolkit.cli {command} | true",
        f"{sys.executable} -m toolkit.cli {command} >&-",
    ):
        assert "Traceback" not in call("bash", "-c", shell).stderr


def test_config_prints_toml():
    assert "train" in tomllib.loads(run("config").stdout)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "none.toml"], "can't read the configuration none.toml"),
        (["train", DIGITS, "--set", "modle.kind=gcn"], "did you mean 'model'"),
        (["train", DIGITS, "--set", "train.epoch=3"], "did you mean 'epochs'"),
        (["train", DIGITS, "--set", "method.name=vanila"], "did you mean 'vanilla'"),
        (["train", DIGITS, "--set", "method.plan=exakt"], "did you mean 'exact'"),
        (["train", DIGITS, "--set", "data.name=digit"], "did you mean 'digits'"),
        (["train", DIGITS, "-np", "2000"], "2000 ranks for the 1797 nodes"),
        (["train", DIGITS, "-np", "0"], "-np is 0"),
        (["plan", DIGITS, "-np", "-1"], "-np is -1"),
        (["train", DIGITS, "--seeds", "0"], "--seeds is 0"),
        (["verify", DIGITS, "--steps", "0"], "--steps is 0"),
        (["verify", DIGITS, "--set", "method.codec=quantised"], "`bitring noise` measures it"),
        (["noise", DIGITS], "the codec, float32, adds no noise"),
        (["noise", DIGITS, "--set", "method.codec=quantised"], "one rank sends nothing"),
        (["noise", DIGITS, "--set", "method.name=adaqp"], "chosen for the first time after 55 epochs"),
        (["train", DIGITS, "--set", "method.name=adapq"], "did you mean 'adaqp'"),
        (["train", DIGITS, "--set", "method.name=adaqp", "--set", "method.policy=best"], "there is no policy 'best'"),
        (["train", DIGITS, "--set", "method.name=adaqp", "--set", "method.machine=nix"], "there is no machine 'nix'"),
        (["train", DIGITS, "--set", "method.name=fixed", "--set", "method.codec=float32"], "leave one of them out"),
        (["train", DIGITS, "--set", "train.noise_every=5"], "the codec adds no noise"),
        (["calibrate", DIGITS], "one rank has nobody to send to"),
        (["simulate", "nowhere", "--machine", "emulated-4"], "there is no file nowhere"),
        (["simulate", DIGITS, "--machine", "emulated-4"], "is no workload file"),
        (["noise", DIGITS, "--set", "method.codec=quantised", "--draws", "1"], "--draws is 1"),
        (["noise", DIGITS, "--set", "method.codec=quantised", "--set", "method.bits=3"], "method.bits is 3"),
        (["verify", DIGITS, "--tolerance", "nan"], "--tolerance is nan"),
        (
            ["train", DIGITS, "--set", "train.lr=1e30", "--set", "train.epochs=9", "--run-dir", "{tmp}/x"],
            "training diverged",
        ),
        (["train", "/dev/null", "-np", "2"], "no regular file"),
        (["train", DIGITS, "--run-dir", DIGITS], "is a file; name a folder"),
        (["data", "show", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_refusals_are_one_sentence_and_exit_2(arguments, sentence, tmp_path):
    arguments = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    result = run(*arguments, env={"BITRING_CACHE": str(tmp_path)})
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("bitring: ")]) == 1


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_starting_ranks(launcher, cache, tmp_path):
    if launcher == "horovodrun":
        need_horovod()
    result = run("train", DIGITS, "-np", "2", "--launcher", launcher, "--run-dir", str(tmp_path / "run"), *cache)
    assert result.returncode == 0, result.stderr
    assert "test accuracy" in result.stdout and "communication" in result.stdout
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ranks"] == 2
    again = run("train", DIGITS, "-np", "2", "--launcher", launcher, "--run-dir", str(tmp_path / "run"), *cache)
    assert again.returncode == 2
    assert "holds a run already" in again.stderr


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_joining_a_job(launcher, cache, tmp_path):
    if launcher == "horovodrun":
        need_horovod()
    arguments = ["bitring", "train", DIGITS, "--run-dir", str(tmp_path / "run"), *cache]
    result = call(launcher, "-np", "2", *arguments)
    assert result.returncode == 0, result.stderr
    assert "test accuracy" in result.stdout
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ranks"] == 2


def test_np_inside_a_job_of_another_size_is_refused(cache):
    result = call("mpirun", "-np", "2", "bitring", "train", DIGITS, "-np", "3", *cache)
    assert result.returncode != 0
    assert "-np 3 inside an MPI job of 2 ranks" in result.stderr


def test_training_without_horovod(cache, tmp_path):
    """The interpreter is told that there is no horovod: the same run goes under mpirun, by mpi4py."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "hidden = lambda c, name, *a: None if name.split('.')[0] == 'horovod' else find(name, *a)\n"
        "m.PathFinder.find_spec = classmethod(hidden)\n"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    result = run("train", DIGITS, "-np", "2", "--run-dir", str(tmp_path / "run"), *cache, env=env)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ranks"] == 2
    asked = run("train", DIGITS, "-np", "2", "--launcher", "horovodrun", *cache, env=env)
    assert asked.returncode == 2
    doctor = run("doctor", env=env)
    assert doctor.returncode == 0
    assert re.search(r"horovod.*missing", doctor.stdout, re.IGNORECASE)
    asked = run(
        "train",
        DIGITS,
        "-np",
        "2",
        "--set",
        "method.transport=horovod",
        "--set",
        f"run.out={tmp_path / 'r'}",
        *cache,
        env=env,
    )
    assert asked.returncode == 2
    assert "Horovod was asked for" in asked.stderr


def test_verify_passes_and_fails(cache):
    good = run("verify", DIGITS, "-np", "2", "--launcher", "mpirun", *cache, "--set", "train.dtype=float64")
    assert good.returncode == 0, good.stderr
    assert "verdict    equal" in good.stdout
    bad = run("verify", DIGITS, "-np", "2", "--launcher", "mpirun", *cache, "--set", "method.codec=bfloat16")
    assert bad.returncode == 1
    assert "DIFFERENT" in bad.stdout


def test_plan_in_json_equals_the_partitions_bytes(cache):
    plan = json.loads(run("plan", DIGITS, "-np", "3", "--json", *cache).stdout)
    partition = json.loads(run("partition", DIGITS, "-np", "3", "--json", *cache).stdout)
    total = sum(sum(map(sum, flow["bytes"])) for flow in plan["passes"]["train"])
    assert total == sum(map(sum, partition["epoch_bytes_per_channel"])) == plan["savings"][-1]["total_bytes"] > 0


def test_data_commands(tmp_path):
    listed = run("data", "list")
    assert listed.returncode == 0
    for name in ("digits", "cora", "coauthor_physics", "sbm"):
        assert name in listed.stdout
    shown = run("data", "show", "digits")
    assert "1,797" in shown.stdout
    assert run("data", "export", "digits", str(tmp_path / "d.npz")).returncode == 0
    assert "1,797" in run("data", "show", str(tmp_path / "d.npz")).stdout
    assert run("data", "export", "digits", str(tmp_path / "d.npz")).returncode == 2


MASKS = [
    (r"[\d.]+ (us|ms|s)\b", "# s"),
    (r"[\d.]+ %", "# %"),
    (r"epoch \d+ of", "epoch # of"),
    (r"(folder +).*", r"\1#"),
    (r"\d threads? each", "# threads each"),
]


def masked(text: str) -> str:
    """Times, accuracies and folders differ between machines; everything else must not."""
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    return text


GOLDEN = {
    "digits.train.txt": ["train", "examples/digits.toml", "-np", "2"],
    "digits.plan.txt": ["plan", "examples/digits.toml", "-np", "4"],
    "digits.partition.txt": ["partition", "examples/digits.toml", "-np", "4"],
    "sbm.plan.txt": ["plan", "examples/sbm.toml", "-np", "4"],
    "cora.plan.txt": ["plan", "examples/cora.toml", "-np", "4"],
    "sample.place.txt": ["place", "examples/sample.npz", "--machine", "emulated-4", "--semantics", "eager"],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_examples_print_their_golden_output(name, tmp_path):
    if name.startswith("cora") and not Path(os.environ.get("BITRING_DATA", ""), "cora").is_dir():
        pytest.skip("cora is not there; point BITRING_DATA at a folder that holds it")
    extra = ["--set", f"run.out={json.dumps(str(tmp_path))}"] if "train" in name else []
    result = run(*GOLDEN[name], *extra, env={"BITRING_CACHE": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    golden = ROOT / "examples" / name
    if os.environ.get("BITRING_WRITE_GOLDEN"):
        golden.write_text(masked(result.stdout), encoding="utf-8")
    assert masked(result.stdout) == golden.read_text(encoding="utf-8")
    if "train" in name:
        accuracy = re.search(r"test accuracy +([\d.]+) %", result.stdout)
        assert accuracy is not None and float(accuracy[1]) > 95


def test_the_example_with_a_graph_of_ones_own(tmp_path):
    result = call(
        sys.executable, "examples/own_graph.py", str(tmp_path / "karate.npz"), env={"BITRING_CACHE": str(tmp_path)}
    )
    assert result.returncode == 0, result.stderr
    accuracy = re.search(r"test accuracy +([\d.]+) %", result.stdout)
    assert accuracy is not None and float(accuracy[1]) > 75
