"""Many choices at once are the choices one by one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.assignment import tune
from simulator.cost import PairCosts, ShortMessages
from simulator.policy import ProblemError
from simulator.sweep import SweepPoint, adaptive, lists, with_front
from simulator.wire import Wire
from tests.simulator.test_epoch import costs, workload

LAMBDAS = [0.0, 0.1, 0.5, 0.9, 1.0]


def hard(ranks, seed):
    """Constant rows, learned coefficients, ties and heavy tails."""
    load, rng = workload(ranks, seed), np.random.default_rng(seed)
    exchanges = []
    for e in load.exchanges:
        ranges = rng.lognormal(0, 3, len(e.bits)) * (rng.random(len(e.bits)) < 0.7)
        ranges[rng.random(len(e.bits)) < 0.3] = 1.0
        alphas = e.alpha_squared.copy()
        alphas[::7] = np.nan
        exchanges.append(dataclasses.replace(e, range_squared=ranges, alpha_squared=alphas))
    return dataclasses.replace(load, exchanges=tuple(exchanges))


@settings(deadline=None, max_examples=25)
@given(
    st.integers(2, 5), st.integers(0, 10**6), st.sampled_from([1, 4, 50]), st.sampled_from([0.0, 1e-7, 1e-5]),
    st.sampled_from([("posted", "apart"), ("posted", "shared"), ("rendezvous", "apart"), ("barrier", "apart")]),
    st.booleans(),
)  # fmt: skip
def test_a_sweep_equals_tuning(ranks, seed, size, theta, ring, at_once):
    load, network = hard(ranks, seed), costs(ranks, theta)
    semantics, links = ring
    over = Wire(network=network, semantics=semantics, links=links)
    found = with_front(adaptive(load, lists(load, size, at_once=at_once), over, LAMBDAS, "adaptive"))
    want = tune(
        load,
        network,
        network,
        lambdas=LAMBDAS,
        group_sizes=[size],
        semantics=semantics,
        links=links,
        policy="posted" if at_once else "adaptive",
    )
    for ours, theirs in zip(found, want, strict=True):
        assert (ours.lam, ours.group_size) == (theirs.lam, theirs.group_size)
        assert ours.num_bytes == theirs.epoch.num_bytes
        assert ours.epoch_s == pytest.approx(theirs.epoch.epoch_s, rel=1e-12)
        assert ours.waiting_s == pytest.approx(theirs.epoch.waiting_s, rel=1e-9, abs=1e-15)
        assert ours.variance_bound == pytest.approx(theirs.variance, rel=1e-9)
        assert ours.mean_bits == pytest.approx(theirs.bits, rel=1e-12)


def test_pairs_of_two_lines_take_the_one_that_fits():
    load = hard(3, 5)
    base = costs(3, 1e-6)
    short = ShortMessages(
        switch_bytes=np.full((3, 3), 1500.0), theta_s_per_byte=base.theta_s_per_byte / 3, gamma_s=base.gamma_s
    )
    network = dataclasses.replace(base, short=short)
    found = adaptive(load, lists(load, 5), Wire(network=network), LAMBDAS, "adaptive")
    want = tune(load, network, network, lambdas=LAMBDAS, group_sizes=[5])
    assert [p.num_bytes for p in found] == [p.epoch.num_bytes for p in want]
    assert [p.epoch_s for p in found] == pytest.approx([p.epoch.epoch_s for p in want], rel=1e-12)


def test_lists_serve_every_bandwidth():
    load, network = hard(4, 1), costs(4, 1e-6)
    once = lists(load, 5)
    for factor in (0.1, 1.0, 10.0):
        wire = Wire(network=network.at_bandwidth(factor))
        again = adaptive(load, lists(load, 5), wire, LAMBDAS, "adaptive")
        assert adaptive(load, once, wire, LAMBDAS, "adaptive") == again


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_front_is_what_nothing_beats(pairs):
    points = [
        SweepPoint(
            method="m", lam=None, group_size=None, mean_bits=1, epoch_s=s, waiting_s=0, num_bytes=0, variance_bound=v
        )
        for s, v in pairs
    ]
    for point, (s, v) in zip(with_front(points), pairs, strict=True):
        assert point.on_front == (not any(a <= s and b <= v and (a < s or b < v) for a, b in pairs))


def test_refusals():
    with pytest.raises(ProblemError, match="group_size is 0"):
        lists(workload(), 0)
    flat = PairCosts(theta_s_per_byte=np.ones((3, 3)), gamma_s=np.ones((3, 3)))
    with pytest.raises(ProblemError, match="lambda is 2"):
        adaptive(workload(), lists(workload(), 5), Wire(network=flat), [2.0], "adaptive")
