"""`bitring place` on saved workloads."""

import json

import numpy as np
import pytest

from simulator import workload as workloads
from simulator.machine import preset
from simulator.placement import judge_of
from simulator.wire import Wire
from tests.simulator.test_epoch import workload
from tests.test_offline import bitring

MACHINE = ["--machine", "emulated-4"]


@pytest.fixture
def saved(tmp_path):
    paths = [tmp_path / f"{seed}.npz" for seed in range(2)]
    for seed, path in enumerate(paths):
        workloads.save(workload(4, seed), path)
    return paths


def test_what_is_written_takes_what_is_told(saved, tmp_path):
    out = tmp_path / "renumbered.npz"
    done = bitring("place", saved[0], *MACHINE, "--links", "apart", "--semantics", "barrier", "--json", "--out", out)
    (told,) = json.loads(done.stdout)
    assert told["best_s"] < told["identity_s"] and told["how"] == "exhaustive" and told["evaluations"] == 24
    wire = Wire(network=preset("emulated-4").pair_costs(), semantics="barrier")
    for load, seconds in ((workload(4, 0), told["identity_s"]), (workloads.load(out), told["best_s"])):
        assert judge_of(load, wire).seconds(np.array([[0, 1, 2, 3]]))[0] == pytest.approx(seconds, rel=1e-12)


def test_the_fastest_of_several(saved):
    words = ["place", *saved, *MACHINE, "--links", "shared", "--semantics", "rendezvous"]
    told = json.loads(bitring(*words, "--json").stdout)
    best = min(told, key=lambda one: one["best_s"])
    shown = bitring(*words)
    assert shown.returncode == 0, shown.stderr
    assert f"partition  {best['workload']}, the fastest of 2" in shown.stdout
    assert "part -> rank: " in shown.stdout and "exhaustive" in shown.stdout and "epoch" in shown.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--restarts", "0"], "a search needs a start and an evaluation at least"),
        (["--machine", "two-hosts-10g"], "is of 4 ranks, and machine two-hosts-10g has 2"),
        (["--out", "/nowhere/x.npz"], "can't write /nowhere/x.npz"),
    ],
)
def test_refusals(saved, words, sentence):
    done = bitring("place", saved[0], *([] if "--machine" in words else MACHINE), *words)
    assert done.returncode == 2
    assert sentence in done.stderr and "Traceback" not in done.stderr
