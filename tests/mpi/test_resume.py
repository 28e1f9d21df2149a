"""A run that is interrupted and resumed equals one that is not: weights, metrics, bytes, bit for bit."""

import argparse
import json
import os
import signal

import numpy as np
import pytest
import torch

from simulator import machine
from simulator.cost import PairCosts
from toolkit import config as configs
from toolkit.comm.world import Solo
from toolkit.commands.train import train
from toolkit.errors import UserError
from toolkit.train import state as states
from toolkit.train import tensorfile
from toolkit.train.recorder import RunFolder
from toolkit.train.trainer import Trainer

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
SECONDS = (
    "epoch_s", "evaluate_s", "rank0_stages_s", "stage_s", "epoch_s_median", "assign_s", "solve_s", "wall_s",
    "assigning", "assignment_held_up_s", "assignment_share", "calibrate_s", "measured_s", "factor", "drift",
)  # fmt: skip


def configuration(folder, **sections):
    base = {
        "data": {"name": "digits"},
        "partition": {"cache": str(folder / "cache"), "tries": 2},
        "model": {"layers": 3, "hidden": 16, "norm": "layer"},
        "train": {"epochs": 11, "threads": 1},
    }
    for section, values in sections.items():
        base[section] = base.get(section, {}) | values
    return configs.from_tables(base)


def start(world, config, folder, seeds=None):
    return train(world, config, argparse.Namespace(run_dir=str(folder), seeds=seeds, resume=None))


def resume(world, config, folder, seeds=None):
    return train(world, config, argparse.Namespace(run_dir=None, seeds=seeds, resume=str(folder)))


def metrics(folder):
    """Every line without its seconds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [without_seconds(line) for line in lines]


def without_seconds(value):
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if key not in SECONDS}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def same_runs(one, two):
    """Metrics, the best weights, and all tensors of the last checkpoint are equal."""
    assert metrics(one) == metrics(two)
    last = [states.newest(folder) for folder in (one, two)]
    assert last[0].epochs == last[1].epochs
    assert last[0].tensors.keys() == last[1].tensors.keys()
    for name, tensor in last[0].tensors.items():
        assert torch.equal(tensor, last[1].tensors[name]), name
    assert last[0].header["optimizer"] == last[1].header["optimizer"]
    best = [tensorfile.read(folder / "weights.safetensors")[0] for folder in (one, two)]
    assert all(torch.equal(tensor, best[1][name]) for name, tensor in best[0].items())


def machine_of(folder, world):
    """A machine.toml of as many hosts as there are ranks."""
    path = folder / "machine.toml"
    if world.rank == 0:
        n = world.size
        costs = PairCosts(theta_s_per_byte=np.full((n, n), 1e-7), gamma_s=np.full((n, n), 1e-4))
        hosts = tuple(machine.Host(name=f"h{i}") for i in range(n))
        machine.write(machine.Machine(name="made", hosts=hosts, fitted=costs), path)
    world.comm.Barrier() if world.size > 1 else None
    return str(path)


class Interruption(Exception):
    """What a crash is to the test."""


@pytest.fixture
def interrupt(monkeypatch):
    """interrupt(n, act): call ``act`` before this process's n-th epoch from now."""

    def at(number, act):
        step, seen = Trainer.step, [0]

        def step_or_act(self, epoch):
            seen[0] += 1
            if seen[0] == number:
                act()
            return step(self, epoch)

        monkeypatch.setattr(Trainer, "step", step_or_act)

    yield at


def crash():
    raise Interruption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_one_rank_stops_all_and_resume_goes_on(world, shared_tmp, interrupt, number):
    config = configuration(shared_tmp)
    assert start(world, config, shared_tmp / "whole") == 0
    if world.rank == world.size - 1:
        interrupt(5, lambda: os.kill(os.getpid(), number))
    assert start(world, config, shared_tmp / "cut") == 128 + number
    world.comm.Barrier()
    assert [line["epoch"] for line in metrics(shared_tmp / "cut")] == list(range(5)), "the epoch is finished"
    world.comm.Barrier()
    assert resume(world, config, shared_tmp / "cut") == 0
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "cut")
    assert json.loads((shared_tmp / "cut" / "run.json").read_text())["resumed"][0]["epochs"] == 5


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize(
    ("train_keys", "method", "norm"),
    [
        ({"optimizer": "adam", "schedule": "cosine"}, {}, "layer"),
        ({"optimizer": "sgd", "eval_every": 3}, {"codec": "bfloat16"}, "batch"),
        ({"noise_every": 100}, {"codec": "quantised", "widths": "uniform", "period": 4}, "layer"),
        (
            {},
            {
                "codec": "quantised",
                "widths": "adaptive",
                "period": 4,
                "lead": 0,
                "group_size": 10,
                "machine": "MACHINE",
            },
            "layer",
        ),
        (  # the checkpoint after epoch 6 lies between the trace after epoch 4 and the switch after epoch 7
            {},
            {
                "codec": "quantised",
                "widths": "adaptive",
                "period": 4,
                "lead": 3,
                "group_size": 10,
                "machine": "MACHINE",
            },
            "layer",
        ),
        ({"optimizer": "adamw", "decay_layers": "first", "dtype": "float64", "patience": 4}, {"plan": "paper"}, "none"),
    ],
)
def test_a_crash_costs_the_epochs_since_the_checkpoint_and_no_bit(
    world, shared_tmp, interrupt, kind, train_keys, method, norm
):
    if method.get("machine"):  # of as many ranks: measured costs would differ from run to run
        method = method | {"machine": machine_of(shared_tmp, world)}
    config = configuration(
        shared_tmp,
        model={"kind": kind, "input_dropout": 0.2, "norm": norm},
        method=method,
        train={"checkpoint_every": 3, **train_keys},
    )
    start(world, config, shared_tmp / "whole")
    interrupt(9, crash)
    with pytest.raises(Interruption):
        start(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    assert [line["kind"] for line in metrics(shared_tmp / "cut")].count("epoch") == 8, (
        "two epochs more than the checkpoint"
    )
    names = sorted(path.name for path in (shared_tmp / "cut" / "checkpoints").glob("epoch*"))
    assert names == ["epoch-000003.ckpt", "epoch-000006.ckpt"]
    if method.get("lead") and world.size > 1:
        pending = states.load(shared_tmp / "cut" / "checkpoints" / names[1]).named("adaptive/pending")
        assert "1/forward/range_squared" in pending and len(pending["1/forward/range_squared"])
    world.comm.Barrier()
    resume(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "cut")


def test_interrupted_twice_in_the_middle_of_several_seeds(world, shared_tmp, interrupt, monkeypatch):
    config = configuration(shared_tmp, train={"epochs": 6, "checkpoint_every": 2})
    start(world, config, shared_tmp / "whole", seeds=3)
    for folder_call in (lambda: start(world, config, shared_tmp / "cut", seeds=3), None):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", Trainer.step)
            interrupt(10, crash)  # seed 1, then seed 2
            with pytest.raises(Interruption):
                folder_call() if folder_call else resume(world, config, shared_tmp / "cut")
        world.comm.Barrier()
    resume(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "cut")
    assert [line["seed"] for line in metrics(shared_tmp / "cut") if line["kind"] == "seed"] == [0, 1, 2]


def test_epochs_may_grow(world, shared_tmp):
    short, long = configuration(shared_tmp, train={"epochs": 7}), configuration(shared_tmp)
    start(world, long, shared_tmp / "whole")
    start(world, short, shared_tmp / "grown")
    assert resume(world, long, shared_tmp / "grown") == 0
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "grown")
    with pytest.raises(UserError, match=r"has trained 11 epochs of 11, and .* is 7; give at least 11"):
        resume(world, short, shared_tmp / "grown")


def test_a_complete_run_is_left_alone(world, shared_tmp):
    config = configuration(shared_tmp)
    start(world, config, shared_tmp / "run")
    world.comm.Barrier()
    before = (shared_tmp / "run" / "metrics.jsonl").read_bytes()
    world.comm.Barrier()
    assert resume(world, config, shared_tmp / "run") == 0
    assert (shared_tmp / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_killed_before_its_summary_writes_it(world, shared_tmp, monkeypatch):
    config = configuration(shared_tmp)
    start(world, config, shared_tmp / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("toolkit.train.traced.record_workload", lambda *args: crash())
        with pytest.raises(Interruption):
            start(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    resume(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "cut")


def test_other_ranks_continue_from_the_same_weights(world, shared_tmp, interrupt):
    """N ranks are interrupted, one process goes on: the losses are those of N to rounding, bytes are counted anew."""
    config = configuration(shared_tmp, train={"dtype": "float64", "checkpoint_every": 5})
    start(world, config, shared_tmp / "whole")
    interrupt(7, crash)
    with pytest.raises(Interruption):
        start(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    if world.rank == 0:
        assert train(Solo(), config, argparse.Namespace(run_dir=None, seeds=None, resume=str(shared_tmp / "cut"))) == 0
        whole, cut = metrics(shared_tmp / "whole"), metrics(shared_tmp / "cut")
        losses = [[line["train_loss"] for line in lines if line["kind"] == "epoch"] for lines in (whole, cut)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
        assert losses[0][:5] == losses[1][:5]
        seed = next(line for line in cut if line["kind"] == "seed")
        assert (seed["train_bytes"], seed["epochs"]) == (0, 11) if world.size > 1 else seed["epochs"] == 11
        assert json.loads((shared_tmp / "cut" / "run.json").read_text())["resumed"][0]["ranks"] == 1
    world.comm.Barrier()


def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(world, shared_tmp, interrupt, caplog):
    config = configuration(shared_tmp, train={"checkpoint_every": 3})
    start(world, config, shared_tmp / "whole")
    interrupt(8, crash)
    with pytest.raises(Interruption):
        start(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    if world.rank == 0:
        path = states.checkpoint_path(shared_tmp / "cut", 6)
        raw = bytearray(path.read_bytes())
        raw[-5] ^= 1
        path.write_bytes(raw)
    world.comm.Barrier()
    resume(world, config, shared_tmp / "cut")
    if world.rank == 0:
        assert "epoch-000006.ckpt is damaged: its checksum differs; continuing from epoch-000003.ckpt" in caplog.text
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "cut")


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"hidden": 32}}, "model.hidden was 16 and is 32"),
        ({"train": {"lr": 0.5}}, "train.lr was 0.01 and is 0.5"),
        ({"train": {"optimizer": "sgd"}}, "train.optimizer was 'adam' and is 'sgd'"),
        ({"data": {"knn": 5}}, "data.knn was 8 and is 5"),
        ({"method": {"plan": "paper"}}, "method.plan was 'exact' and is 'paper'"),
        ({"run": {"seed": 4}}, "run.seed was 0 and is 4"),
    ],
)
def test_another_configuration_is_refused_by_name_on_every_rank(world, shared_tmp, sections, sentence):
    config = configuration(shared_tmp, train={"epochs": 2})
    start(world, config, shared_tmp / "run")
    sections = {"train": {}} | sections
    other = configuration(shared_tmp, **sections | {"train": {"epochs": 2} | sections["train"]})
    with pytest.raises(UserError, match=sentence):
        resume(world, other, shared_tmp / "run")


def test_two_runs_in_one_folder(world, shared_tmp):
    config = configuration(shared_tmp, train={"epochs": 2})
    start(world, config, shared_tmp / "run")
    held = RunFolder.reopen(shared_tmp / "run") if world.rank == 0 else None
    with pytest.raises(UserError, match=rf"another run is at work in .*run \(process {os.getpid() if held else ''}"):
        resume(world, config, shared_tmp / "run")
    if held is not None:
        held.close()
    world.comm.Barrier()
    assert resume(world, config, shared_tmp / "run") == 0


def test_a_full_disk_is_told_and_the_last_checkpoint_stays(world, shared_tmp, monkeypatch):
    config = configuration(shared_tmp, train={"checkpoint_every": 4})
    start(world, config, shared_tmp / "whole")
    write = tensorfile.write

    def full_at_8(path, tensors, metadata):
        if path.name == "epoch-000008.ckpt":
            monkeypatch.setattr(os, "fsync", lambda descriptor: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
        write(path, tensors, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(tensorfile, "write", full_at_8)
        with pytest.raises(UserError, match=r"can't write .*epoch-000008.ckpt: No space left on device; what was"):
            start(world, config, shared_tmp / "full")
    monkeypatch.undo()
    world.comm.Barrier()
    names = {path.name for path in (shared_tmp / "full" / "checkpoints").iterdir()}
    assert names - {"best.ckpt"} == {"epoch-000004.ckpt"}, "and nothing half-written"
    world.comm.Barrier()
    assert resume(world, config, shared_tmp / "full") == 0
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "full")


def test_the_best_validation_and_its_waiting_are_kept(world, shared_tmp, interrupt):
    """At this rate no weight moves: the first epoch stays the best, and patience ends the run."""
    config = configuration(shared_tmp, train={"lr": 1e-20, "patience": 8, "checkpoint_every": 3, "weight_decay": 0.0})
    start(world, config, shared_tmp / "whole")
    interrupt(8, crash)
    with pytest.raises(Interruption):
        start(world, config, shared_tmp / "cut")
    resume(world, config, shared_tmp / "cut")
    world.comm.Barrier()
    same_runs(shared_tmp / "whole", shared_tmp / "cut")
    seed = next(line for line in metrics(shared_tmp / "cut") if line["kind"] == "seed")
    assert (seed["best"]["epoch"], seed["epochs"]) == (0, 9)
