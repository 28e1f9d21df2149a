"""Every method at its neutral setting is vanilla; each one's own rules against plain loops."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.choice import METHODS, build, parameters, unquantised
from simulator.epoch import Load, simulate, with_bits
from simulator.machine import preset
from simulator.methods import (
    Broadcasts,
    Fresh,
    Gist,
    MethodError,
    blocks_of,
    broadcast,
    narrowed,
)
from simulator.pipeline import Pipelined, settled
from simulator.wire import Wire
from simulator.workload import message_bytes
from tests.simulator.test_epoch import costs, workload

RINGS = [("posted", "apart"), ("posted", "shared"), ("eager", "apart"), ("rendezvous", "apart"), ("barrier", "apart")]


def owned(ranks=3, seed=0):
    inner = np.random.default_rng(seed + 1).integers(20, 60, ranks)
    return dataclasses.replace(workload(ranks, seed), inner=inner)


def wire(ranks=3, theta=1e-7, **choices):
    return Wire(network=costs(ranks, theta), **choices)


def epoch_s(name, load, over, words=(), **choices):
    sent, method = build(name, load, parameters(name, words) if name else {}, **choices)
    return method.steady(Load.of(sent), over).told().epoch_s


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(RINGS), st.sampled_from([1e-9, 1e-7, 1e-5]))
def test_neutral_settings_take_vanillas_time(ranks, seed, ring, theta):
    load, over = owned(ranks, seed), wire(ranks, theta, semantics=ring[0], links=ring[1])
    vanilla = simulate(unquantised(load), over.network, semantics=ring[0], links=ring[1]).epoch_s
    assert epoch_s("vanilla", load, over) == pytest.approx(vanilla, rel=1e-12)
    assert epoch_s("quantised", with_bits(load, 32), over) == pytest.approx(
        simulate(with_bits(load, 32), over.network, semantics=ring[0], links=ring[1]).epoch_s, rel=1e-12
    )
    assert epoch_s("pipelined", load, over, ["staleness=0"]) == pytest.approx(vanilla, rel=1e-9)
    gist = Gist(parts=1, local=4, weight_bytes=load.weight_gradient_bytes)
    alone = epoch_s("gist", load, over, ["parts=1", "local=4"])
    assert alone == pytest.approx(vanilla + gist.sync_s(over) / 4, rel=1e-12)
    plain = epoch_s("broadcast", load, over)
    assert epoch_s("skip-broadcast", load, over, ["staleness=0"]) == plain
    assert epoch_s("skip-broadcast", load, over, ["skip=0"]) == plain


def test_a_machine_of_links_gives_neutral_settings_too():
    load, over = owned(4, 3), Wire(network=preset("emulated-4").topology())
    vanilla = epoch_s("vanilla", load, over)
    assert epoch_s("pipelined", load, over, ["staleness=0"]) == pytest.approx(vanilla, rel=1e-9)
    assert epoch_s("skip-broadcast", load, over, ["staleness=0"]) == epoch_s("broadcast", load, over) > 0


def pipeline(load, network, staleness, epochs):
    """PipeGCN with loops over epochs, exchanges, ranks and messages, on one clock; links apart."""
    n = load.ranks
    share = load.dense_s / (len(load.exchanges) + 1)
    arrived, free, begin, ends = {}, [0.0] * n, 0.0, []
    for t in range(epochs):
        clock = [begin + float(load.held_s[r]) for r in range(n)]
        for number, e in enumerate(load.exchanges):
            sizes = e.channel_bytes()
            posted = []
            for r in range(n):
                clock[r] += share[r] + (e.marginal_s[r] if e.direction == "backward" else 0.0) + e.encode_s[r]
                posted.append(max(clock[r], free[r]))
            there = list(posted)
            for s in range(n):
                for r in range(n):
                    if sizes[s, r]:
                        end = posted[s] + network.theta_s_per_byte[s, r] * sizes[s, r] + network.gamma_s[s, r]
                        there[s], there[r] = max(there[s], end), max(there[r], end)
            free = there
            arrived[t, number] = there
            for r in range(n):
                ready = clock[r] + e.central_s[r]
                if (t - staleness, number) in arrived:
                    ready = max(ready, arrived[t - staleness, number][r])
                clock[r] = ready + e.decode_s[r] + (e.marginal_s[r] if e.direction == "forward" else 0.0)
        end = max(clock[r] + share[r] for r in range(n)) + (load.weight_gradient_s if n > 1 else 0.0)
        ends.append(end - begin)
        begin = end
    return np.array(ends)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 4), st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([1e-8, 1e-6, 1e-5]))
def test_a_pipeline_equals_its_unrolled_epochs(ranks, seed, staleness, theta):
    load, over = owned(ranks, seed), wire(ranks, theta)
    found = Pipelined(staleness=staleness).run(Load.of(load), over, np.arange(30)).seconds
    assert found == pytest.approx(pipeline(load, over.network, staleness, 30 + 10 * staleness)[-30:], rel=1e-9)
    steady = Pipelined(staleness=staleness).steady(Load.of(load), over).told().epoch_s
    settled_s = pipeline(load, over.network, staleness, 600)[-60:]  # some ranks drift for hundreds of epochs
    assert steady == pytest.approx(settled_s.mean(), rel=1e-6)


def test_a_pipelines_period_is_compute_or_communication():
    load = owned(3, 5)
    fast, slow = wire(3, 1e-10), wire(3, 1e-3)
    compute = simulate(load, costs(3, theta=0.0, gamma=0.0)).epoch_s
    free = Wire(network=costs(3, theta=0.0, gamma=0.0))
    assert epoch_s("pipelined", load, fast) <= epoch_s("vanilla", load, fast)
    lower = max(float((load.held_s + load.dense_s).max()), 0.0)
    assert lower < epoch_s("pipelined", load, free) <= compute * (1 + 1e-12)
    # where messages rule, an epoch is what its exchanges take one after the other, as no rank waits for another's
    plain, clock = unquantised(load), np.zeros(3)
    for _ in range(60):
        before = clock.max()
        for e in plain.exchanges:
            clock = slow.flight(e.channel_bytes(), clock)
    assert epoch_s("pipelined", load, slow) == pytest.approx(clock.max() - before, rel=0.02)


def test_a_pipeline_that_drifts_is_told():
    with pytest.raises(MethodError, match="has not settled"):
        settled(np.arange(1.0, 401.0))
    assert settled(np.tile([1.0, 2.0], 100)) == pytest.approx(1.5)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_a_broadcast_reaches_everyone_once(ranks):
    """Every message costs 1: the k-th level of the tree ends at k. Bytes are those of N - 1 messages."""
    unit = Wire(
        network=dataclasses.replace(
            costs(ranks), theta_s_per_byte=np.zeros((ranks, ranks)), gamma_s=np.ones((ranks, ranks))
        )
    )
    for root in range(ranks):
        there = broadcast(unit, np.float64(10), root, np.zeros(ranks))
        depth = math.ceil(math.log2(ranks)) if ranks > 1 else 0
        assert there.max() == depth and there.min() >= min(1, depth)
        late = np.zeros(ranks)
        late[root] = 7.0
        assert (broadcast(unit, np.float64(10), root, late)[np.arange(ranks) != root] >= 8).all()
    assert (broadcast(unit, np.float64(0), 0, np.arange(ranks) * 1.0) == np.arange(ranks)).all(), (
        "skipped: no one waits"
    )


def test_broadcasts_take_block_after_block():
    """Compute alone: all products stay what they were. Messages alone: the sum of the trees."""
    load, over = owned(4, 2), wire(4, 1e-6)
    time = build("broadcast", load, parameters("broadcast", []))
    told = time[1].steady(Load.of(time[0]), over).told()
    for e, step in zip(load.exchanges, told.exchanges, strict=True):
        assert step.product_s == pytest.approx(float((e.central_s + e.marginal_s).mean()))
        row = int(message_bytes(e.row_entries, np.array([32], np.uint8))[0])
        assert step.num_bytes == 3 * int(load.inner.sum()) * row
        assert step.coding_s == 0
        assert step.hidden_s == pytest.approx(0, abs=1e-12) and step.waiting_s > 0, "nothing overlaps"


def test_skipping_saves_what_it_skips():
    load, over = owned(4, 2), wire(4, 1e-5)
    block_bytes, share = blocks_of(load)
    full = Broadcasts(block_bytes=block_bytes, share=share).run(Load.of(load), over, np.arange(1)).seconds[0]
    stale = Broadcasts(block_bytes=block_bytes, share=share, staleness=2, on="both")
    found = stale.run(Load.of(load), over, np.arange(6)).seconds
    quiet = stale.run(Load.of(load), wire(4, 0.0), np.array([1])).seconds[0]
    assert found[[0, 3]] == pytest.approx(full)
    assert found[[1, 2, 4, 5]] == pytest.approx(found[1]) and found[1] < full
    assert quiet == pytest.approx(found[1]), "nothing travels, so the network does not matter"
    mean = stale.steady(Load.of(load), over).told()
    assert mean.epoch_s == pytest.approx((full + 2 * found[1]) / 3)
    turns = dataclasses.replace(stale, turns=True).steady(Load.of(load), over).told()
    sent = [
        dataclasses.replace(stale, on=on).steady(Load.of(load), over).told().num_bytes for on in ("both", "forward")
    ]
    assert turns.num_bytes == sent[0] < sent[1]
    assert found[1] < turns.epoch_s < full


def test_drawn_skips_agree_first_and_are_keyed():
    load, over = owned(4, 2), wire(4, 1e-5)
    block_bytes, share = blocks_of(load)
    half = Broadcasts(block_bytes=block_bytes, share=share, skip=0.5, on="both")
    numbers = np.arange(60)
    found = half.run(Load.of(load), over, numbers).seconds
    assert (half.run(Load.of(load), over, numbers[::-1]).seconds == found[::-1]).all()
    other = dataclasses.replace(half, seed=1).run(Load.of(load), over, numbers).seconds
    assert (other != found).any()
    told = half.steady(Load.of(load), over).told()
    full = Broadcasts(block_bytes=block_bytes, share=share).steady(Load.of(load), over).told()
    assert told.num_bytes == pytest.approx(0.5 * full.num_bytes, rel=0.05)
    nearly = dataclasses.replace(half, skip=1e-12).steady(Load.of(load), over).told()
    agree = 4 * 2 * 2 * costs(4).seconds(np.full((4, 4), 1)).max()  # exchanges, up and down, levels
    assert full.epoch_s < nearly.epoch_s
    assert nearly.epoch_s <= full.epoch_s + agree + float(load.dense_s.max()) * 4 + 1.0


def test_gist_narrows_hidden_rows_alone():
    load, over = owned(3, 1), wire()
    last = load.exchanges[1].row_entries
    made = narrowed(load, 4, outputs=last)
    assert made.exchanges[1].row_entries == last
    assert made.exchanges[0].row_entries == -(-load.exchanges[0].row_entries // 4)
    assert (made.dense_s == load.dense_s / 4).all()
    times = [epoch_s("gist", load, over, [f"parts={parts}"]) for parts in (1, 2, 4)]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]
    rare, often = (epoch_s("gist", load, over, [f"local={local}"]) for local in (50, 1))
    sync = Gist(parts=2, local=1, weight_bytes=load.weight_gradient_bytes).sync_s(over)
    assert often - rare == pytest.approx(sync * (1 - 1 / 50))


def test_assignments_are_spread_over_their_period():
    load, over = owned(), wire()
    plain = epoch_s(None, load, over)
    assert epoch_s("quantised", load, over, ["period=10"]) == plain
    assert epoch_s("quantised", load, over, ["period=10", "assign_s=2"]) == pytest.approx(plain + 0.2)
    metadata = with_bits(load, 8)
    rows = sum(int(e.rows.sum()) for e in load.exchanges)
    codes = sum(int(e.rows.sum()) * e.row_entries for e in load.exchanges)
    assert simulate(metadata, over.network).num_bytes == codes + 4 * rows


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("pipelnied", [], "did you mean 'pipelined'"),
        ("pipelined", ["stalenes=2"], "did you mean 'staleness'"),
        ("pipelined", ["staleness"], "not of the form key=value"),
        ("pipelined", ["staleness=two"], "must be a number"),
        ("pipelined", ["staleness=1.5"], "give a whole number"),
        ("pipelined", ["staleness=-1"], "staleness is -1"),
        ("pipelined", ["staleness=nan"], "must be a number"),
        ("pipelined", ["staleness=inf"], "must be a number"),
        ("pipelined", ["staleness=1001"], "give a number <= 1000"),
        ("skip-broadcast", ["staleness=1001"], "give a number <= 1000"),
        ("broadcast", ["nodes=-5"], "nodes is -5"),
        ("gist", ["local=1001"], "give a number <= 1000"),
        ("quantised", ["assign_s=-5"], "assign_s is -5"),
        ("vanilla", ["bits=2"], "it has none"),
        ("skip-broadcast", ["skip=1"], "share in"),
        ("skip-broadcast", ["skip=0.5", "staleness=2"], "give one"),
        ("skip-broadcast", ["on=left"], "forward, backward or both"),
        ("gist", ["parts=0"], "parts is 0"),
        ("quantised", ["period=0"], "period is 0"),
    ],
)
def test_refusals(name, words, sentence):
    with pytest.raises(MethodError, match=sentence):
        build(name, owned(), parameters(name, words))


def test_blocks_need_the_number_of_nodes():
    with pytest.raises(MethodError, match="give nodes"):
        build("broadcast", workload(), parameters("broadcast", []))
    sent, method = build("broadcast", workload(), parameters("broadcast", ["nodes=100"]))
    assert method.block_bytes[0].tolist() == [34 * 4 * sent.exchanges[0].row_entries] * 3


def test_every_method_has_its_parameters_and_more_ranks_work():
    load, over = owned(6, 4), wire(6)
    for name in METHODS:
        assert epoch_s(name, load, over) > 0
    assert Fresh().steady(Load.of(load), over).told().epoch_s == simulate(load, over.network).epoch_s
