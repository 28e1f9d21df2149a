"""Adaptive widths in training (ranks as threads): trace, solve, agree, go on."""

import copy

import numpy as np
import pytest
import torch

from simulator import machine
from simulator.cost import PairCosts
from tests.support.graphs import random_graph
from tests.support.local_world import run_ranks
from toolkit import config as configs
from toolkit.errors import UserError
from toolkit.graph.part import build_parts
from toolkit.train.noise import measure
from toolkit.train.trainer import Trainer, parameter_copies

RANKS = 3


@pytest.fixture
def wires(tmp_path):
    """A machine.toml of three hosts, one pair slower than the rest."""
    theta = np.full((RANKS, RANKS), 1e-7)
    theta[0, 1] = 5e-7
    costs = PairCosts(theta_s_per_byte=theta, gamma_s=np.full((RANKS, RANKS), 1e-4))
    hosts = tuple(machine.Host(name=f"h{i}") for i in range(RANKS))
    machine.write(machine.Machine(name="three", hosts=hosts, fitted=costs), tmp_path / "machine.toml")
    return str(tmp_path / "machine.toml")


def trainer_of(world, transport, method, kind="gcn"):
    graph = random_graph(90, 12, mean_degree=6.0)
    parts = np.random.default_rng(1).integers(0, RANKS, graph.num_nodes)
    config = configs.Config(
        model=configs.Model(kind=kind, layers=3, hidden=16, norm="layer"), method=configs.Method(**method)
    )
    return Trainer(list(build_parts(graph, parts, RANKS))[world.rank], config, world, transport)


def adaptive(wires, **more):
    return {"codec": "quantised", "widths": "adaptive", "period": 3, "group_size": 4, "machine": wires} | more


def train(world, transport, method, epochs=8, kind="gcn", between=lambda trainer, epoch: None):
    trainer = trainer_of(world, transport, method, kind)
    widths, told = [], []
    for epoch in range(epochs):
        trainer.step(epoch)
        way = trainer.engine.ways["train", 1][1]
        widths.append({d: w.out.bits.tolist() for d, w in way.items()})
        between(trainer, epoch)
        if trainer.adaptive is not None:
            told.append(trainer.adaptive.told)
    return parameter_copies(trainer.parameters), widths, told


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_widths_change_at_the_end_of_a_period(wires, kind):
    results = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, lam=0.5), kind=kind))
    for _, widths, told in results:
        assert all(set(bits) <= {8} for way in widths[:3] for bits in way.values()), "the first period: 8 bits"
        assert widths[3] == widths[4] == widths[5] != widths[2]
        assert [one is not None for one in told] == [False, False, True, False, False, True, False, False]
    sent = [w["forward"] for _, widths, _ in results for w in [widths[3]]]
    told = results[0][2][2]
    counted = {"2": 0, "4": 0, "8": 0}
    for bits in sent:
        for width in bits:
            counted[str(width)] += 1
    recorded = next(w for w in told["widths"] if (w["layer"], w["direction"]) == (1, "forward"))["messages"]
    assert recorded == {width: count for width, count in counted.items() if count}
    assert len(told["widths"]) == 4 and told["gap"] < 0.2
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))


def test_lambda_1_is_8_bits_and_lambda_0_few(wires):
    eight = run_ranks(RANKS, lambda w, t: train(w, t, {"codec": "quantised", "bits": 8}))[0]
    most = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, lam=1.0)))[0]
    assert all(torch.equal(a, b) for a, b in zip(eight[0], most[0], strict=True)), "the same rows at the same widths"
    least = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, lam=0.0)))[0]
    assert np.mean(least[1][-1]["forward"]) < 5


def test_only_training_passes_are_traced(wires):
    """Evaluating, and measuring noise, between epochs leaves the assignment as it is."""

    def look(trainer, epoch):
        trainer.evaluate()
        measure(trainer, epoch + 1, draws=2)

    plain = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires)))[0]
    looked = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires), between=look))[0]
    assert plain[1] == looked[1]
    assert all(torch.equal(a, b) for a, b in zip(plain[0], looked[0], strict=True))


def test_a_state_goes_on_where_it_was(wires):
    def work(world, transport):
        whole = trainer_of(world, transport, adaptive(wires))
        for epoch in range(5):
            whole.step(epoch)
        plain = world.broadcast(whole.adaptive.to_plain())
        again = trainer_of(world, transport, adaptive(wires))
        again.network.load_state_dict(whole.network.state_dict())
        again.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
        again.adaptive.take(plain)
        for trainer in (whole, again):
            for epoch in range(5, 8):
                trainer.step(epoch)
        return parameter_copies(whole.parameters), parameter_copies(again.parameters)

    for one, two in run_ranks(RANKS, work):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"machine": "emulated-4"}, "has 4 devices, and this job 3 ranks"),
        ({"machine": "nowhere"}, "there is no machine 'nowhere'"),
        ({"machine": ""}, "name a machine"),
        ({"policy": "best"}, "there is no policy 'best'"),
    ],
)
def test_what_can_not_be_assigned_is_refused(wires, change, sentence):
    with pytest.raises(UserError, match=sentence):
        run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires) | change))


def test_widths_go_with_the_codec():
    with pytest.raises(UserError, match="widths go with codec quantised"):
        configs.Method(widths="adaptive")
    with pytest.raises(UserError, match=r"method.lam is 1.5"):
        configs.Method(lam=1.5)
