"""`bitring tune`: rules, a written configuration, candidates and halving."""

import argparse
import dataclasses
import json
import subprocess
import sys

import pytest

from simulator import machine as machines
from simulator import workload as workloads
from simulator.assignment import knee, tune
from simulator.machine import Host, Machine
from tests.simulator.test_epoch import costs, workload
from toolkit import config as configs
from toolkit.commands import tune_real
from toolkit.commands.tune_real import Candidate, Measured, measured_of, regret, spread
from toolkit.errors import UserError

MACHINE = ["--machine", "emulated-4"]
GRID = ["--group-sizes", "2", "20", "--lambdas", "5"]


@pytest.fixture
def run_folder(tmp_path):
    workloads.save(workload(4), tmp_path / "workload.npz")
    text = configs.to_toml(configs.from_tables({"model": {"kind": "sage"}, "method": {"codec": "bfloat16"}}))
    (tmp_path / "config.toml").write_text(text)
    return tmp_path


def bitring(*words):
    command = [sys.executable, "-m", "toolkit.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def slow(tmp_path):
    """A network that makes widths worth choosing."""
    path = tmp_path / "slow.toml"
    machines.write(Machine(name="slow", hosts=tuple(Host(name=n) for n in "abcd"), fitted=costs(4, theta=1e-4)), path)
    return ["--machine", str(path)]


def test_what_is_written_is_a_ready_configuration(run_folder, slow):
    out = run_folder / "best.toml"
    done = bitring("tune", run_folder, *slow, *GRID, "--periods", 20, 400, "--write", out, "--json")
    assert done.returncode == 0, done.stderr
    (chosen,) = [point for point in json.loads(done.stdout) if point["chosen"]]
    assert chosen["knee"] and chosen["policy"] == "posted"
    config = configs.load(out)
    method = config.method
    assert (method.name, method.codec, method.widths, method.policy) == ("adaqp", "quantised", "adaptive", "posted")
    assert (method.lam, method.group_size) == (chosen["lambda"], chosen["group_size"])
    assert [p["epochs"] for p in chosen["periods"] if p["chosen"]] == [method.period]
    assert config.model.kind == "sage" and dataclasses.replace(config, method=configs.Method()) == dataclasses.replace(
        configs.load(run_folder / "config.toml"), method=configs.Method()
    )


def test_a_joint_budget_is_written_too(run_folder, slow):
    out = run_folder / "best.toml"
    done = bitring("tune", run_folder, *slow, *GRID, "--budget", "joint", "--write", out, "--json")
    assert done.returncode == 0, done.stderr
    each = json.loads(bitring("tune", run_folder, *slow, *GRID, "--json").stdout)
    joint = json.loads(done.stdout)
    assert configs.load(out).method.budget == "joint"
    (run_folder / "config.toml").write_text(out.read_text())  # what is written is tuned so again
    again = json.loads(bitring("tune", run_folder, *slow, *GRID, "--json").stdout)
    assert [p["variance_bound"] for p in again] == [p["variance_bound"] for p in joint]
    between = [place for place, point in enumerate(each) if point["lambda"] == 0.5]
    assert any(each[place]["variance_bound"] != joint[place]["variance_bound"] for place in between)
    ends = [place for place, point in enumerate(each) if point["lambda"] in (0, 1)]
    assert all(each[place]["num_bytes"] == joint[place]["num_bytes"] for place in ends)


def test_a_fixed_width_that_beats_the_grid_is_chosen_and_written(run_folder):
    out = run_folder / "best.toml"
    done = bitring("tune", run_folder, *MACHINE, *GRID, "--write", out)
    assert done.returncode == 0, done.stderr
    (starred,) = [line for line in done.stdout.splitlines() if line.startswith("*  ")]
    assert "fixed 8" in starred and 'method.name = "fixed", method.bits = 8: an epoch of' in done.stdout
    method = configs.load(out).method
    assert (method.name, method.codec, method.widths, method.bits) == ("fixed", "quantised", "fixed", 8)


def test_where_nothing_is_gained_float32_stays(run_folder):
    """Ten thousand times the bandwidth: all messages hide."""
    machine, out = run_folder / "fast.toml", run_folder / "best.toml"
    hosts = tuple(Host(name=n) for n in "abcd")
    machines.write(Machine(name="fast", hosts=hosts, fitted=costs(4, theta=1e-12)), machine)
    for rule in ([], ["--hidden"], ["--within-variance", "1000"]):
        done = bitring("tune", run_folder, "--machine", machine, *GRID, *rule, "--write", out)
        assert "nothing to gain here: float32 stays" in done.stdout, done.stderr
        method = configs.load(out).method
        assert (method.name, method.codec, method.widths) == ("vanilla", "float32", "fixed")


def test_rules_of_the_command_line(run_folder):
    points = json.loads(bitring("tune", run_folder, *MACHINE, *GRID, "--json").stdout)
    seconds = sorted(point["epoch_s"] for point in points)[3]
    for rule, fits in (
        (["--within-seconds", seconds], lambda p: p["epoch_s"] <= seconds),
        (["--hidden"], lambda p: p["lambda"] == 0 or p["bits"] == 8),
        (["--within-variance", points[0]["variance_bound"]], lambda p: True),
    ):
        (chosen,) = [p for p in json.loads(bitring("tune", run_folder, *MACHINE, *GRID, *rule, "--json").stdout)
                     if p["chosen"]]  # fmt: skip
        assert fits(chosen)
    shown = bitring("tune", run_folder, *MACHINE, *GRID, "--semantics", "barrier").stdout
    assert "by adaptive" in shown and "method.period = " in shown and "fixed 32" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["FOLDER", *MACHINE, "--within-seconds", "1e-9"], "no choice has an epoch of 1e-09 s or less"),
        (["FOLDER", *MACHINE, "--periods", "0"], "--periods 0 and --lead 5"),
        ([], "give WORKLOAD and --machine FILE, or --real"),
        (["FOLDER"], "--machine is missing"),
        (["FOLDER", *MACHINE, "-np", "2"], "go with --real"),
        (["FOLDER/workload.npz", *MACHINE, "--write", "/nowhere/x.toml"], "can't write /nowhere/x.toml"),
        (["--real", "FOLDER/config.toml", "-np", "1"], "one rank sends nothing"),
        (["--real", "FOLDER/config.toml", "-np", "2", "--epochs", "4"], "--epochs is 4; give a number >= 10"),
        (["--real", "FOLDER/config.toml", "-np", "2", "--candidates", "1"], "--candidates is 1"),
        (["FOLDER", "--real", "FOLDER/config.toml", "-np", "2"], "records its own run"),
        (["FOLDER", *MACHINE, "--launch", "mpirun"], "go with --real"),
        (["--real", "FOLDER/config.toml", "--launch", "nompirun -np 2"], "there is no program 'nompirun'"),
        (["--real", "FOLDER/config.toml", "--launch", "mpirun '"], "No closing quotation"),
    ],
)
def test_refusals(run_folder, words, sentence):
    done = bitring("tune", *(word.replace("FOLDER", str(run_folder)) for word in words))
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


def test_a_workload_alone_has_no_configuration_to_write(tmp_path):
    workloads.save(workload(4), tmp_path / "workload.npz")
    done = bitring("tune", tmp_path / "workload.npz", *MACHINE, "--write", tmp_path / "x.toml")
    assert done.returncode == 2 and "--write needs the run's own config.toml" in done.stderr
    assert not (tmp_path / "x.toml").exists()


@pytest.fixture
def points():
    load, network = workload(4, 3), costs(4, theta=1e-6)
    return tune(load, network, network, lambdas=[0, 0.2, 0.4, 0.6, 0.8, 1.0], group_sizes=[1, 5])


@pytest.mark.parametrize("count", [2, 4, 7])
def test_candidates_are_spread_along_the_front(points, count):
    best = knee(points)
    chosen = spread(points, best, count)
    front = sorted((p for p in points if p.on_front), key=lambda p: p.epoch.epoch_s)
    assert len({id(p) for p in chosen}) == len(chosen) and len(chosen) >= min(count, len(front))
    assert len(chosen) <= count + 1 and any(p is best for p in chosen)
    assert chosen[0] is front[0] and all(p.on_front or p is best for p in chosen)


def test_a_run_is_measured_after_its_switch():
    def epoch(number, seconds):
        return {"kind": "epoch", "epoch": number, "epoch_s": seconds}

    noise = {"kind": "noise", "layers": [{"layer": 0, "codec": 9, "dropout": 9},
                                         {"layer": -1, "codec": 0.1, "dropout": 0.4}]}  # fmt: skip
    lines = [*(epoch(n, 5.0) for n in range(4)), {"kind": "assignment", "epoch": 3}, epoch(4, 7.0), epoch(5, 1.0),
             epoch(6, 2.0), epoch(7, 3.0), noise]  # fmt: skip
    found = measured_of("\n".join(map(json.dumps, lines)))
    assert found == Measured(epochs=8, epoch_s=2.0, codec=0.1, dropout=0.4)
    assert found.judged_s == pytest.approx(2.0 * 1.25)
    assert dataclasses.replace(found, dropout=0.0).judged_s == 2.0


def test_a_run_of_a_fixed_width_is_measured_in_its_latter_half():
    noise = {"kind": "noise", "layers": [{"layer": -1, "codec": 0.0, "dropout": 0.4}]}
    lines = [{"kind": "epoch", "epoch": n, "epoch_s": float(n)} for n in range(10)]
    assert measured_of("\n".join(map(json.dumps, [*lines, noise]))).epoch_s == 7.5  # of epochs 6 to 9


def made(point, *seconds):
    runs = [Measured(epochs=10 * 2**n, epoch_s=s, codec=0.0, dropout=1.0) for n, s in enumerate(seconds)]
    return Candidate(point=point, runs=runs)


def test_regret_compares_like_with_like(points):
    a, b, c = made(points[0], 4.0, 1.0), made(points[1], 3.0, 3.0), made(points[2], 5.0)
    assert regret([a, b, c], a) == 0.0
    assert regret([a, b, c], c) == pytest.approx(5 / 3 - 1), "its only rung is the first"
    assert regret([a, b, c], b) == pytest.approx(2.0)


def test_halving_keeps_the_better_half_and_doubles(points, run_folder, slow, monkeypatch, capsys):
    """Runs are made up: seconds by lambda. The least wins, though the offline choice is another."""
    tried = []

    def train(args, folder, keys, epochs):
        folder.mkdir()
        lam = next((float(key.split("=")[1]) for key in keys if key.startswith("method.lam=")), None)
        if "method.policy=auto" in keys:
            workloads.save(workload(4), folder / "workload.npz")
            return
        lam = 3.0 if lam is None else lam  # a fixed width
        tried.append((lam, epochs))
        lines = [{"kind": "assignment", "epoch": 0}, {"kind": "noise", "layers": [
            {"layer": -1, "codec": 0.0, "dropout": 1.0}]}]  # fmt: skip
        lines += [{"kind": "epoch", "epoch": n, "epoch_s": 1.0 + (lam - 0.7) ** 2} for n in range(epochs)]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))

    monkeypatch.setattr(tune_real, "_train", train)
    out = run_folder / "real.toml"
    args = argparse.Namespace(
        real=str(run_folder / "config.toml"), ranks=4, workload=None, set=[], candidates=4, epochs=12, lambdas=11,
        group_sizes=[2], periods=[50], lead=5, policy="auto", machine="emulated-4", semantics="posted", links="auto",
        budget=None, launch=None,
        within_seconds=None, within_variance=None, hidden=False, json=True, write=str(out),
    )  # fmt: skip
    args.machine = slow[1]
    assert tune_real.run(args) == 0
    told = json.loads(capsys.readouterr().out)
    (best,) = [c for c in told["candidates"] if c["best"]]
    lambdas = [c["lambda"] if c["lambda"] is not None else 3.0 for c in told["candidates"]]
    assert abs(best["lambda"] - 0.7) == min(abs(lam - 0.7) for lam in lambdas)
    counts = [sum(epochs == wanted for _, epochs in tried) for wanted in (12, 24, 48)]
    assert counts[0] == len(lambdas) and counts[1] == (counts[0] + 1) // 2 and counts[2] >= 1
    assert configs.load(out).method.lam == best["lambda"]
    assert told["behind"] >= 0


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [
        ({"ranks": 3}, [], ["-np", "3"]),
        ({"launch": "mpirun -np 2 -H 'a b:1'"}, ["mpirun", "-np", "2", "-H", "a b:1"], []),
    ],
)
def test_how_a_short_run_is_started(words, before, after, tmp_path, monkeypatch):
    """By our own launcher, or by what stands before the command; mpirun's last words hide no rank's."""
    seen = []

    def run(command, **_):
        seen.append(command)
        return subprocess.CompletedProcess(command, 2, "", "bitring: no such graph\nPrimary job terminated\n\n")

    monkeypatch.setattr(tune_real.subprocess, "run", run)
    monkeypatch.setattr(tune_real.shutil, "which", lambda name: f"/bin/{name}")
    args = argparse.Namespace(**{"real": "c.toml", "set": ["data.name=cora"], "launch": None, "ranks": None} | words)
    with pytest.raises(UserError, match="a short run ended with code 2: bitring: no such graph"):
        tune_real._train(args, tmp_path / "run", ["method.lam=0.25"], 12)
    (command,) = seen
    ours = [sys.executable, "-m", "toolkit.cli", "train", "c.toml"]
    start = [*before, *ours, *after, "--run-dir", str(tmp_path / "run")]
    assert command[: len(start)] == start and "method.lam=0.25" in command and "data.name=cora" in command


def test_what_launch_may_start(tmp_path):
    args = argparse.Namespace(launch="mpirun -np 1")
    with pytest.raises(UserError, match="must put rank 0 on this host"):
        tune_real._recorded(tmp_path / "workload.npz", args)
    workloads.save(workload(1), tmp_path / "workload.npz")
    with pytest.raises(UserError, match="starts one rank, which sends nothing"):
        tune_real._recorded(tmp_path / "workload.npz", args)
