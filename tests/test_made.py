"""A workload made without a run, held against what a run of the same configuration records."""

import dataclasses
import os
import time
from pathlib import Path

import numpy as np
import pytest

from simulator import machine
from simulator.cost import PairCosts
from simulator.epoch import simulate
from simulator.made import MadeError, Rates, allreduce_s, compute_ratios
from tests.support.local_world import run_ranks
from toolkit import config as configs
from toolkit import counts
from toolkit.graph import cache
from toolkit.train.loop import medians
from toolkit.train.traced import record_workload
from toolkit.train.trainer import Trainer

RANKS = 3
RATES = Rates(flop_s=np.full(RANKS, 1e10), memory_byte_s=np.full(RANKS, 1e9))
COSTS = PairCosts(theta_s_per_byte=np.full((RANKS, RANKS), 1e-8), gamma_s=np.full((RANKS, RANKS), 1e-4))


def configuration(folder, data="digits", **sections):
    base = {
        "data": {"name": data},
        "partition": {"cache": str(folder / "cache"), "tries": 1},
        "model": {"layers": 3, "hidden": 32, "norm": "layer"},
        "train": {"threads": 1},
    }
    for section, values in sections.items():
        base[section] = base.get(section, {}) | values
    return configs.from_tables(base)


def recorded(config, partition, epochs=1):
    """What a real run of so many epochs records, ranks as threads."""

    def rank(world, transport):
        trainer = Trainer(partition.load(world.rank), config, world, transport)
        stages, seconds = [], []
        for epoch in range(epochs):
            trainer.ledger.take_seconds()
            begin = time.perf_counter()
            trainer.step(epoch)
            seconds.append(time.perf_counter() - begin)
            stages.append(trainer.ledger.take_seconds())
        return record_workload(trainer, world, medians(stages, seconds), ())

    return run_ranks(RANKS, rank)[0]


GRAPHS = ["digits", "cora", "amazon_computers"]
CASES = [
    {},
    {"method": {"plan": "paper"}},
    {"method": {"plan": "kept+needed"}, "model": {"input_dropout": 0.2}},
    {"method": {"codec": "quantised", "bits": 2}},
    {"method": {"codec": "bfloat16"}, "model": {"kind": "sage"}},
    {"model": {"kind": "gat", "norm": "batch"}},
    {"model": {"layers": 2, "kind": "sage", "norm": "none"}},
    {"train": {"dtype": "float64"}, "model": {"input_dropout": 0.3}},
]


def need(graph):
    if graph != "digits" and not Path(os.environ.get("BITRING_DATA", ""), graph).is_dir():
        pytest.skip(f"{graph} is not there; point BITRING_DATA at a folder that holds it")


@pytest.mark.parametrize("sections", CASES, ids=[str(number) for number in range(len(CASES))])
@pytest.mark.parametrize("graph", GRAPHS[:2])
def test_messages_are_those_that_a_run_counts(tmp_path, graph, sections):
    need(graph)
    config = configuration(tmp_path, graph, **sections)
    partition = cache.ensure(config, RANKS)
    made, run = counts.workload_of(config, partition, RATES, COSTS), recorded(config, partition)
    assert [(e.layer, e.direction) for e in made.exchanges] == [(e.layer, e.direction) for e in run.exchanges]
    for ours, theirs in zip(made.exchanges, run.exchanges, strict=True):
        assert ours.row_entries == theirs.row_entries
        assert (ours.rows == theirs.rows).all() and ours.rows.sum() > 0
        assert (ours.bits == theirs.bits).all()
        assert (ours.channel_bytes() == theirs.channel_bytes()).all()
        if config.model.kind != "gat":  # attention is not known without a run
            np.testing.assert_allclose(ours.alpha_squared, theirs.alpha_squared, rtol=1e-6)
    assert (made.inner == run.inner).all()
    assert made.transport == run.transport and made.graph == run.graph
    if config.train.dtype == "float32":
        assert made.weight_gradient_bytes == run.weight_gradient_bytes
    assert simulate(made, COSTS).num_bytes == run.epoch_bytes()


@pytest.mark.timeout(200)
def test_estimated_compute_is_within_reach_of_a_run(tmp_path):
    """Rates as measured here; a factor of 6 either way over all, on a graph where work outweighs calls."""
    need("amazon_computers")
    from toolkit.commands.offline import measured_rates

    config = configuration(tmp_path, "amazon_computers", model={"hidden": 256})
    partition = cache.ensure(config, RANKS)
    flop_s, memory_byte_s = (np.full(RANKS, rate / RANKS) for rate in measured_rates())
    made = counts.workload_of(config, partition, Rates(flop_s=flop_s, memory_byte_s=memory_byte_s), COSTS)
    ratios = compute_ratios(made, recorded(config, partition, epochs=4))
    print(ratios)
    assert 1 / 6 < ratios["compute"] < 6
    assert all(1 / 30 < ratios[stage] < 30 for stage in ("central", "marginal", "dense"))


def test_more_work_and_slower_devices_take_longer(tmp_path):
    config = configuration(tmp_path)
    partition = cache.ensure(config, RANKS)
    base = counts.workload_of(config, partition, RATES, COSTS)
    wider = dataclasses.replace(config, model=dataclasses.replace(config.model, hidden=64))
    assert (counts.workload_of(wider, partition, RATES, COSTS).dense_s > base.dense_s).all()
    half = Rates(flop_s=RATES.flop_s / 2, memory_byte_s=RATES.memory_byte_s / 2)
    slower = counts.workload_of(config, partition, half, COSTS)
    np.testing.assert_allclose(slower.dense_s, 2 * base.dense_s)
    for a, b in zip(slower.exchanges, base.exchanges, strict=True):
        for stage in ("encode_s", "central_s", "decode_s", "marginal_s"):
            np.testing.assert_allclose(getattr(a, stage), 2 * getattr(b, stage))


def test_a_ring_allreduce():
    assert allreduce_s(3000, COSTS) == pytest.approx(4 * (1000 * 1e-8 + 1e-4))
    one = PairCosts(theta_s_per_byte=np.zeros((1, 1)), gamma_s=np.zeros((1, 1)))
    assert allreduce_s(3000, one) == 0


def test_refusals(tmp_path):
    with pytest.raises(MadeError, match="flop_s is 0"):
        Rates(flop_s=np.zeros(2), memory_byte_s=np.ones(2))
    config = configuration(tmp_path)
    partition = cache.ensure(config, RANKS)
    with pytest.raises(MadeError, match="costs of 4"):
        counts.workload_of(config, partition, RATES, machine.preset("emulated-4").pair_costs())
    made = counts.workload_of(config, partition, RATES, COSTS)
    with pytest.raises(MadeError, match="as the run had them"):
        compute_ratios(made, dataclasses.replace(made, exchanges=made.exchanges[:1]))
