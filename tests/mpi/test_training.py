"""Whole runs over the ranks of this job."""

import argparse
import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import torch

from simulator import workload as workloads
from toolkit import config as configs
from toolkit.comm.transport import Nothing
from toolkit.comm.world import Solo
from toolkit.commands.train import train
from toolkit.errors import UserError
from toolkit.graph import cache, registry
from toolkit.graph.part import whole
from toolkit.plan import floats, message_bytes, plan_of
from toolkit.traffic import flows, total_bytes
from toolkit.train.loop import train_seed
from toolkit.train.trainer import Trainer, make_transport

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


def configuration(folder, **sections):
    base = {
        "data": {"name": "digits"},
        "partition": {"cache": str(folder / "cache"), "tries": 2},
        "model": {"layers": 3, "hidden": 32, "norm": "layer"},
        "train": {"epochs": 12, "threads": 1},
    }
    for section, values in sections.items():
        base[section] = base.get(section, {}) | values
    return configs.from_tables(base)


def partition_of(world, config):
    if world.rank == 0:
        cache.ensure(config, world.size)
    world.comm.Barrier()
    return cache.ensure(config, world.size)


@pytest.mark.parametrize("plan", ["exact", "paper", "kept", "once+narrow"])
@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        ({"codec": "float32"}, "float32"),
        ({"codec": "bfloat16"}, "float32"),
        ({"codec": "float32"}, "float64"),
        ({"codec": "quantised", "bits": 2}, "float32"),
        ({"codec": "quantised", "bits": 32}, "float32"),
    ],
)
@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_bytes_counted_equal_bytes_predicted(world, shared_tmp, plan, codec, dtype, kind):
    config = configuration(
        shared_tmp,
        method={"plan": plan, "quantise_all": plan == "paper" and codec["codec"] == "quantised"} | codec,
        model={"kind": kind, "input_dropout": 0.2},
        train={"dtype": dtype},
    )
    partition = partition_of(world, config)
    part = partition.load(world.rank)
    transport = make_transport(world, config.method)
    trainer = Trainer(part, config, world, transport)
    for epoch in range(3):
        trainer.step(epoch)
    trainer.evaluate()
    transport.close()
    made = plan_of(config, part.num_features, part.num_classes)
    for kind_of_pass, steps, times in (("train", made.train, 3), ("evaluate", made.evaluate, 1)):
        for flow in flows(steps, partition.channels, partial(message_bytes, config, kind_of_pass)):
            counted = trainer.ledger.sent.get((kind_of_pass, flow.step.layer, flow.direction))
            predicted = times * flow.num_bytes[world.rank]
            assert (counted is None and not predicted.any()) or counted.tolist() == predicted.tolist()
    held = made.train[0].sends == "nothing"
    setup = trainer.ledger.phase_bytes("setup")
    width = {"float32": 4, "float64": 8}[dtype]
    assert setup == (partition.channels[world.rank].sum() * part.num_features * width if held else 0)
    assert trainer.ledger.weight_gradient_bytes == (3 * trainer.gradient_bytes if world.size > 1 else 0)


def test_bytes_of_drawn_widths(world, shared_tmp):
    """The average predicts them within a few percent; what both ends draw is the same, or decoding would fail."""
    config = configuration(shared_tmp, method={"codec": "quantised", "widths": "uniform", "period": 2})
    partition = partition_of(world, config)
    part = partition.load(world.rank)
    transport = make_transport(world, config.method)
    trainer = Trainer(part, config, world, transport)
    drawn = []
    for epoch in range(4):
        trainer.step(epoch)
        way = trainer.engine.ways["train", 1][1]["forward"].out
        drawn.append(way.bits.tolist())
        assert set(drawn[-1]) <= {2, 4, 8}
    transport.close()
    if len(drawn[0]) > 20:
        assert drawn[0] == drawn[1] != drawn[2] == drawn[3]
    plan = plan_of(config, part.num_features, part.num_classes)
    predicted = 4 * total_bytes(flows(plan.train, partition.channels, partial(message_bytes, config, "train")))
    told = world.gather((trainer.ledger.phase_bytes("train"), part.num_inner))
    if told is not None and world.size > 1:
        assert sum(sent for sent, _ in told) == pytest.approx(predicted.sum(), rel=0.03)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_32_bits_equal_vanilla_bit_for_bit(world, shared_tmp, kind):
    weights = set()
    for method in ({"codec": "float32"}, {"codec": "quantised", "bits": 32}):
        config = configuration(shared_tmp, method=method, model={"kind": kind}, train={"epochs": 4})
        part = partition_of(world, config).load(world.rank)
        transport = make_transport(world, config.method)
        trainer = train_seed(part, config, world, transport, 0, None).trainer
        transport.close()
        weights.add(b"".join(p.detach().numpy().tobytes() for p in trainer.parameters))
    assert len(weights) == 1


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("transport_name", ["ring", "horovod"])
def test_quantised_training_learns(world, shared_tmp, kind, transport_name):
    """Two bits, every hidden layer both ways: close to float32 in accuracy, and not equal to it."""
    found = []
    for method in ({"codec": "float32"}, {"codec": "quantised", "bits": 2, "transport": transport_name}):
        config = configuration(shared_tmp, method=method, model={"kind": kind}, train={"epochs": 25})
        part = partition_of(world, config).load(world.rank)
        transport = make_transport(world, config.method)
        result = train_seed(part, config, world, transport, 0, None).result
        transport.close()
        assert result.replicas_agree
        found.append(result)
    exact, rounded = (result.best.scores["test"].accuracy for result in found)
    assert rounded > exact - 0.05
    if world.size > 1:
        assert found[1].train_bytes < 0.25 * found[0].train_bytes
        assert found[1].best.scores["test"].loss != found[0].best.scores["test"].loss


def test_a_row_that_is_not_finite_is_named(world, shared_tmp):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    config = configuration(shared_tmp, method={"codec": "quantised", "bits": 4})
    part = partition_of(world, config).load(world.rank)
    transport = make_transport(world, config.method)
    trainer = Trainer(part, config, world, transport)
    with torch.no_grad():
        trainer.parameters[0][0, 0] = float("nan")
    with pytest.raises(UserError, match=rf"epoch 1, layer 1, forward, at rank {world.rank}: the row of node \d+ holds"):
        trainer.step(0)


@pytest.mark.parametrize("codec", [{"codec": "float32"}, {"codec": "quantised", "widths": "uniform", "period": 3}])
@pytest.mark.parametrize("reduction", ["mpi", "horovod"])
def test_the_same_run_twice_gives_the_same_bits(world, shared_tmp, codec, reduction):
    config = configuration(shared_tmp, method=codec, train={"reduction": reduction})
    part = partition_of(world, config).load(world.rank)
    weights = []
    for _ in range(2):
        transport = make_transport(world, config.method)
        trained = train_seed(part, config, world, transport, 0, None)
        transport.close()
        assert trained.result.replicas_agree
        weights.append([p.detach().numpy().tobytes() for p in trained.trainer.parameters])
    assert weights[0] == weights[1]


def test_ring_semantics_give_the_same_bits(world, shared_tmp):
    weights = set()
    for ring in ("posted", "rendezvous", "barrier"):
        config = configuration(shared_tmp, method={"ring": ring}, train={"epochs": 4})
        part = partition_of(world, config).load(world.rank)
        transport = make_transport(world, config.method)
        trainer = train_seed(part, config, world, transport, 0, None).trainer
        transport.close()
        weights.add(b"".join(p.detach().numpy().tobytes() for p in trainer.parameters))
    assert len(weights) == 1


def arguments(folder, seeds=1):
    return argparse.Namespace(run_dir=str(folder / "run"), seeds=seeds, resume=None)


def test_a_run_folder(world, shared_tmp, capsys):
    config = configuration(shared_tmp)
    train(world, config, arguments(shared_tmp, seeds=2))
    printed = capsys.readouterr().out
    world.comm.Barrier()
    folder = shared_tmp / "run"
    assert configs.load(folder / "config.toml") == config
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines if line["kind"] != "bytes"]
    assert kinds == ["epoch"] * 12 + ["seed"] + ["epoch"] * 12 + ["seed", "summary"]
    sent = [line for line in lines if line["kind"] == "bytes" and line["seed"] == 1 and line["phase"] == "train"]
    assert all(np.shape(line["sent_bytes"]) == (world.size, world.size) for line in sent)
    assert [(line["layer"], line["direction"]) for line in sent] == [
        (1, "forward"),
        (2, "forward"),
        (2, "backward"),
        (1, "backward"),
    ]
    assert {line["schema_version"] for line in lines} == {1}
    epochs = [line for line in lines if line["kind"] == "epoch" and line["seed"] == 1]
    best = max(epochs, key=lambda line: (line["val"]["accuracy"], -line["val"]["loss"], -line["epoch"]))
    seeds = [line for line in lines if line["kind"] == "seed"]
    assert seeds[1]["best"]["epoch"] == best["epoch"], "test is read at best validation"
    tests = [seed["best"]["scores"]["test"]["accuracy"] for seed in seeds]
    assert lines[-1]["test_accuracy_mean"] == pytest.approx(np.mean(tests))
    assert lines[-1]["test_accuracy_deviation"] == pytest.approx(np.std(tests, ddof=1))
    assert json.loads((folder / "run.json").read_text())["ranks"] == world.size
    if world.rank == 0:
        assert "test accuracy" in printed and str(folder) in printed
    else:
        assert printed == ""
    workload = workloads.load(folder / "workload.npz")
    assert workload.ranks == world.size
    assert workload.epoch_bytes() == seeds[-1]["train_bytes"], "the recorded workload moves what the run moved"
    assert sum(np.sum(line["sent_bytes"]) for line in sent) == 12 * seeds[-1]["train_bytes"]
    partition = cache.ensure(config, world.size)
    predicted = total_bytes(flows(plan_of(config, 64, 10).train, partition.channels, floats))
    assert sum(e.channel_bytes() for e in workload.exchanges).tolist() == predicted.tolist()
    for exchange in workload.exchanges:
        assert (exchange.alpha_squared > 0).all()
        assert (exchange.range_squared >= 0).all()


def test_a_second_run_in_the_folder_is_refused_on_every_rank(world, shared_tmp):
    config = configuration(shared_tmp, train={"epochs": 1})
    train(world, config, arguments(shared_tmp))
    with pytest.raises(UserError, match="holds a run already"):
        train(world, config, arguments(shared_tmp))


def test_a_refused_run_leaves_no_folder(world, shared_tmp, monkeypatch):
    def refuse(*args):
        raise UserError("no transport")

    monkeypatch.setattr("toolkit.train.trainer.make_transport", refuse)
    with pytest.raises(UserError, match="no transport"):
        train(world, configuration(shared_tmp), arguments(shared_tmp))
    assert not (shared_tmp / "run").exists()


def test_a_damaged_part_is_refused(world, shared_tmp):
    config = configuration(shared_tmp)
    partition = partition_of(world, config)
    world.comm.Barrier()
    if world.rank == 0:
        for path in partition.folder.glob("rank*.npz"):
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 2] ^= 1
            path.write_bytes(raw)
    world.comm.Barrier()
    with pytest.raises(UserError, match="damaged"):
        partition.load(world.rank)


def test_a_full_disk_is_told_and_what_was_written_stays(world, shared_tmp, monkeypatch):
    from toolkit.train.recorder import RunFolder

    write = RunFolder.write

    def full_at_the_seventh(self, kind, **values):
        if values.get("epoch") == 6:
            self._metrics.close()
            self._metrics = open("/dev/full", "a", buffering=1)  # noqa: SIM115
        write(self, kind, **values)

    monkeypatch.setattr(RunFolder, "write", full_at_the_seventh)
    if world.size > 1:
        pytest.skip("the rank that can't write ends the whole job: shown by one rank alone")
    with pytest.raises(UserError, match="No space left on device; what is there so far is kept"):
        train(world, configuration(shared_tmp), arguments(shared_tmp))
    assert len((shared_tmp / "run" / "metrics.jsonl").read_text().splitlines()) == 6


def test_early_stopping_stops_every_rank_at_the_same_epoch(world, shared_tmp):
    config = configuration(shared_tmp, train={"epochs": 200, "patience": 5})
    part = partition_of(world, config).load(world.rank)
    transport = make_transport(world, config.method)
    result = train_seed(part, config, world, transport, 0, None).result
    transport.close()
    assert result.epochs < 200
    assert result.epochs == result.best.epoch + 1 + 5
    assert len(set(world.comm.allgather(result.epochs))) == 1


def test_any_number_of_ranks_draws_the_same_dropout(world, shared_tmp):
    """Losses under dropout equal those of one process: the masks are the same node by node."""
    config = configuration(shared_tmp, model={"dropout": 0.5, "input_dropout": 0.5}, train={"dtype": "float64"})
    part = partition_of(world, config).load(world.rank)
    transport = make_transport(world, config.method)
    ours = Trainer(part, config, world, transport)
    alone = Trainer(whole(registry.load(config)), config, Solo(), Nothing())
    losses = [ours.step(epoch).loss for epoch in range(3)]
    transport.close()
    assert losses == pytest.approx([alone.step(epoch).loss for epoch in range(3)], rel=1e-12)
    other = dataclasses.replace(config, run=dataclasses.replace(config.run, seed=1))
    assert Trainer(whole(registry.load(other)), other, Solo(), Nothing()).step(0).loss != pytest.approx(losses[0])
