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
from toolkit import cli
from toolkit.commands import place
from toolkit.commands.place import never_slower

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
    assert told["epoch_after_s"] <= told["epoch_before_s"] and told["chosen"] and told["renumbered"]
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
    assert f"partition  {best['workload']}, of 2" in shown.stdout
    assert "part -> rank: " in shown.stdout and "exhaustive" in shown.stdout and "epoch" in shown.stdout


def test_the_whole_epoch_is_never_slower():
    """Rings that end sooner may make a longer epoch: then the numbers stay."""
    assert never_slower(0, [(2.0, 1.0)]) == (0, True)
    assert never_slower(0, [(2.0, 2.0)]) == (0, True)
    assert never_slower(0, [(2.0, 2.1)]) == (0, False)
    assert never_slower(1, [(2.0, 1.0), (1.9, 1.95)]) == (1, False)
    assert never_slower(1, [(2.0, 2.5), (2.2, 2.1)]) == (0, False)


def test_what_would_be_slower_is_not_written(saved, tmp_path, monkeypatch, capsys):
    out = tmp_path / "kept.npz"
    # the renumbered epoch, told second, is taken to be the longer one
    seconds = iter([1.0, 2.0])
    monkeypatch.setattr(place, "_epoch_s", lambda *_: next(seconds))
    words = ["place", str(saved[0]), *MACHINE, "--links", "apart", "--semantics", "barrier", "--out", str(out)]
    args = cli.parser().parse_args(words)
    assert args.run(args) == 0
    shown = capsys.readouterr().out
    assert "the numbers as they are" in shown and "would make an epoch of 2.00 s: the numbers stay" in shown
    for kept, own in zip(workloads.load(out).exchanges, workload(4, 0).exchanges, strict=True):
        assert (kept.rows == own.rows).all()


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
