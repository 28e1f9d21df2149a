"""Epochs under stragglers: each equals a simulation of that epoch alone, and comparisons are paired."""

import dataclasses

import numpy as np
import pytest

from simulator.choice import METHODS, build, parameters
from simulator.cost import CostError, PairCosts
from simulator.epoch import Load, simulate, with_bits
from simulator.machine import preset
from simulator.replicas import Choice, Distribution, disturbed, seconds
from simulator.stragglers import StragglerError, Stragglers, paired_difference, parse
from simulator.wire import Wire
from tests.simulator.test_epoch import costs, workload

WORDS = ("device:1=1.5", "link:0-1=lognormal:0.5", "device=bursts:0.1:3:2")


def slow(*words, seed=7):
    return Stragglers(seed=seed, members=tuple(parse(word, stream=i) for i, word in enumerate(words)))


def choice(name=None, load=None, theta=1e-5, words=(), ranks=3, **ring):
    load = dataclasses.replace(load or workload(ranks), inner=np.full(ranks, 30))
    sent, method = build(name, load, parameters(name, words) if name else {})
    over = Wire(network=costs(ranks, theta), **ring)
    return Choice(name=name or "as recorded", method=method, load=Load.of(sent), wire=over)


@pytest.mark.parametrize("semantics", ["posted", "rendezvous", "barrier"])
def test_epochs_equal_simulations_of_one_epoch_each(semantics):
    load, network, stragglers = workload(), costs(3, 1e-5), slow(*WORDS)
    found = seconds(choice(load=load, semantics=semantics), stragglers, 20)
    device, link = stragglers.device_factors(3, np.arange(20)), stragglers.link_factors(3, np.arange(20))
    for t in range(20):
        exchanges = tuple(
            dataclasses.replace(
                e, **{f"{s}_s": getattr(e, f"{s}_s") * device[t] for s in ("encode", "central", "decode", "marginal")}
            )
            for e in load.exchanges
        )
        one = dataclasses.replace(
            load, exchanges=exchanges, held_s=load.held_s * device[t], dense_s=load.dense_s * device[t]
        )
        over = PairCosts(theta_s_per_byte=network.theta_s_per_byte * link[t], gamma_s=network.gamma_s * link[t])
        assert found[t] == pytest.approx(simulate(one, over, semantics=semantics).epoch_s, rel=1e-12)
    assert len(set(found)) > 10


def test_what_stragglers_cost():
    told = disturbed(choice(), slow(*WORDS), 60)
    assert told.epochs.p5_s <= told.epochs.median_s <= told.epochs.p95_s
    assert told.all_stragglers.mean > 0 and told.all_stragglers.significant
    base = simulate(workload(), costs(3, 1e-5)).epoch_s
    assert told.epochs.mean_s - told.all_stragglers.mean == pytest.approx(base, rel=1e-12)
    assert len(told.each) == 3
    alone = disturbed(choice(), slow(WORDS[0]), 60)
    assert alone.each[0] == alone.all_stragglers
    without = seconds(choice(), slow(*WORDS).without(1), 60)
    assert told.each[1].mean == pytest.approx((seconds(choice(), slow(*WORDS), 60) - without).mean())


def test_comparisons_are_paired():
    load, stragglers = workload(), slow("link=lognormal:0.8", "device=lognormal:0.3")
    wide, narrow = choice(load=with_bits(load, 32)), choice(load=with_bits(load, 2))
    own = seconds(wide, stragglers, 100)
    difference = paired_difference(own, seconds(narrow, stragglers, 100))
    assert difference.high < 0, "narrow rows are faster, and 100 paired epochs show it"
    apart = seconds(narrow, dataclasses.replace(stragglers, seed=8), 100) - seconds(wide, stragglers, 100)
    assert difference.high - difference.low < 2 * 1.984 * apart.std(ddof=1) / 10
    same = paired_difference(own, seconds(wide, stragglers, 100))
    assert same.mean == same.low == same.high == 0


@pytest.mark.parametrize("name", METHODS)
def test_every_method_meets_stragglers(name):
    one = choice(name)
    calm = seconds(one, Stragglers(), 12)
    rough = seconds(one, slow("device:0=3", "link=1.5"), 12)
    assert (rough > calm).all() and rough.shape == calm.shape == (12,)


def test_a_pipeline_hides_a_slow_link():
    """What vanilla waits for and the pipeline doesn't: a link that is slow in some epochs."""
    stragglers = slow("link:0-1=bursts:0.2:1:4")
    costs_of = [
        disturbed(choice(name, theta=1e-6), stragglers, 80).all_stragglers.mean for name in ("vanilla", "pipelined")
    ]
    assert 0 <= costs_of[1] < costs_of[0]


def test_a_distribution():
    found = Distribution.of(np.arange(1.0, 102.0))
    assert (found.mean_s, found.median_s, found.p5_s, found.p95_s, found.epochs) == (51, 51, 6, 96, 101)


def test_refusals():
    with pytest.raises(StragglerError, match="two or more"):
        disturbed(choice(), slow("device:1=2"), 1)
    with pytest.raises(StragglerError, match="device 9 is not there"):
        seconds(choice(), slow("device:9=2"), 5)
    shared = dataclasses.replace(choice(load=workload(4), ranks=4), wire=Wire(network=preset("emulated-4").topology()))
    with pytest.raises(CostError, match="needs costs of pairs"):
        seconds(shared, slow("link=2"), 5)
    assert (seconds(shared, slow("device=2"), 3) > seconds(shared, Stragglers(), 3)).all()
