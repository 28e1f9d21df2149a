"""simulate, trace, tune and sweep on a saved workload: no MPI, no torch."""

import gzip
import json
import subprocess
import sys

import pytest

from simulator import workload as workloads
from simulator.epoch import simulate
from simulator.machine import preset
from tests.simulator.test_epoch import workload

MACHINE = ["--machine", "emulated-4"]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "workload.npz"
    workloads.save(workload(4), path)
    return path


def bitring(*words, cwd=None):
    command = [sys.executable, "-m", "toolkit.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_simulate_tells_the_epoch(saved):
    told = json.loads(bitring("simulate", saved, *MACHINE, "--json").stdout)
    assert told["epoch_s"] == pytest.approx(simulate(workload(4), preset("emulated-4").topology()).epoch_s)
    narrow = json.loads(bitring("simulate", saved, *MACHINE, "--bits", 2, "--json").stdout)
    assert narrow["num_bytes"] < told["num_bytes"] and narrow["epoch_s"] < told["epoch_s"]
    shown = bitring("simulate", saved, *MACHINE, "--policy", "adaptive", "--group-size", 5)
    assert shown.returncode == 0 and "gap 0.0e+00" in shown.stdout and "backward" in shown.stdout


def test_a_timeline_and_a_picture(saved, tmp_path):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "t.json.gz", tmp_path / "t.png"
    done = bitring("trace", saved, *MACHINE, "--out", out, "--picture", picture)
    assert done.returncode == 0, done.stderr
    assert json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert picture.stat().st_size > 10_000


def test_tune_shows_a_front_and_its_knee(saved):
    points = json.loads(bitring("tune", saved, *MACHINE, "--group-sizes", 2, 20, "--lambdas", 5, "--json").stdout)
    assert len(points) == 10 and sum(point["knee"] for point in points) == 1
    assert next(point for point in points if point["knee"])["on_front"]


def test_a_sweep_goes_to_a_file(saved, tmp_path):
    pytest.importorskip("matplotlib")
    done = bitring(
        "sweep", saved, *MACHINE, "--lambdas", 3, "--group-sizes", 5, "--bandwidths", 0.1, 1, "--semantics", "posted",
        "barrier", "--picture", "front.svg", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * (3 + 6)
    by_key = {(p["bandwidth_factor"], p["semantics"], p["method"], p["lambda"]): p["epoch_s"] for p in lines}
    assert by_key[0.1, "posted", "fixed 32", None] > by_key[1, "posted", "fixed 32", None]
    assert by_key[1, "barrier", "fixed 32", None] >= by_key[1, "posted", "fixed 32", None]
    assert (tmp_path / "front.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["simulate", "WORKLOAD", "--machine", "nvlnk-4"], "did you mean 'nvlink-4'"),
        (["simulate", "WORKLOAD", "--machine", "two-hosts-10g"], "is of 4 ranks, and machine two-hosts-10g has 2"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "best"], "there is no policy 'best'"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "adaptive", "--lam", "2"], "lambda is 2"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "adaptive", "--group-size", "0"], "group_size is 0"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "fixed", "--bits", "2"], "both choose widths"),
        (["tune", "WORKLOAD", *MACHINE, "--lambdas", "1"], "--lambdas is 1"),
        (["trace", "WORKLOAD", *MACHINE, "--out", "/nowhere/t.gz"], "can't write the timeline"),
        (["sweep", "WORKLOAD", *MACHINE, "--bandwidths", "0"], "--bandwidths above 0"),
    ],
)
def test_refusals(saved, words, sentence):
    done = bitring(*(saved if word == "WORKLOAD" else word for word in words))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
