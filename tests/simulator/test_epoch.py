"""A simulated epoch against a plain walk through its stages, and its limits."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import machine
from simulator.cost import PairCosts, fit
from simulator.epoch import limit_s, simulate, variance_bound, with_bits
from simulator.tracks import timeline
from simulator.workload import Exchange, Workload, message_bytes


def workload(ranks=3, seed=0, bits=(2, 4, 8, 32)):
    rng = np.random.default_rng(seed)

    def seconds():
        return rng.random(ranks) * 0.01

    def exchange(layer, direction):
        rows = rng.integers(0, 30, (ranks, ranks))
        np.fill_diagonal(rows, 0)
        return Exchange(
            layer=layer,
            direction=direction,
            row_entries=int(rng.integers(1, 200)),
            rows=rows,
            bits=rng.choice(np.array(bits, np.uint8), int(rows.sum())),
            range_squared=rng.random(int(rows.sum())),
            alpha_squared=rng.random(int(rows.sum())),
            **{f"{name}_s": seconds() for name in ("encode", "flight", "central", "decode", "marginal")},
        )

    steps = [(1, "forward"), (2, "forward"), (2, "backward"), (1, "backward")]
    return Workload(
        ranks=ranks,
        exchanges=tuple(exchange(*step) for step in steps),
        held_s=seconds(),
        dense_s=seconds(),
        weight_gradient_bytes=1000,
        weight_gradient_s=0.003,
        transport="ring:posted",
        graph="made up",
    )


def costs(ranks=3, theta=1e-7, gamma=1e-4):
    rng = np.random.default_rng(1)
    shape = (ranks, ranks)
    return PairCosts(theta_s_per_byte=theta * (1 + rng.random(shape)), gamma_s=gamma * (1 + rng.random(shape)))


def walk(load, network, overlap=True):
    """The same with loops over ranks and messages, links apart."""
    n = load.ranks
    clock = [float(s) for s in load.held_s]
    for e in load.exchanges:
        for r in range(n):
            clock[r] += load.dense_s[r] / (len(load.exchanges) + 1)
            clock[r] += (e.marginal_s[r] if e.direction == "backward" else 0.0) + e.encode_s[r]
        end, first = list(clock), 0
        for s in range(n):
            for r in range(n):
                count = int(e.rows[s, r])
                size = int(message_bytes(e.row_entries, e.bits[first : first + count]).sum())
                first += count
                if size:
                    arrival = clock[s] + network.theta_s_per_byte[s, r] * size + network.gamma_s[s, r]
                    end[s], end[r] = max(end[s], arrival), max(end[r], arrival)
        for r in range(n):
            ready = max(end[r], clock[r] + e.central_s[r]) if overlap else end[r] + e.central_s[r]
            clock[r] = ready + e.decode_s[r] + (e.marginal_s[r] if e.direction == "forward" else 0.0)
    last = max(c + s / (len(load.exchanges) + 1) for c, s in zip(clock, load.dense_s, strict=True))
    return last + (load.weight_gradient_s if n > 1 else 0.0)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(0, 10**6), st.booleans())
def test_an_epoch_equals_a_walk_through_it(ranks, seed, overlap):
    load, network = workload(ranks, seed), costs(ranks)
    assert simulate(load, network, overlap=overlap).epoch_s == pytest.approx(walk(load, network, overlap), rel=1e-12)


@pytest.mark.parametrize("semantics", ["posted", "eager", "rendezvous", "barrier"])
def test_slower_networks_and_links_never_help(semantics):
    load = workload()
    base = simulate(load, costs(), semantics=semantics, links="shared")
    slower = simulate(load, costs(theta=3e-7), semantics=semantics, links="shared")
    assert slower.epoch_s > base.epoch_s
    assert simulate(load, costs(), semantics=semantics, links="shared", overlap=False).epoch_s >= base.epoch_s
    assert simulate(load, costs(), semantics="posted", links="apart").epoch_s <= base.epoch_s


def test_what_is_told_adds_up():
    load = workload()
    time = simulate(load, costs())
    assert time.num_bytes == load.epoch_bytes() == sum(e.num_bytes for e in time.exchanges)
    free = simulate(load, costs(theta=0.0, gamma=0.0))
    assert free.waiting_s < time.waiting_s and free.epoch_s < time.epoch_s
    assert limit_s(load, costs()) <= time.epoch_s
    assert all(e.hidden_s >= -1e-15 and e.waiting_s >= 0 for e in time.exchanges)


def test_no_limit_lies_above_an_epoch():
    """Also where exchanges are of other ranks, so that they don't wait for each other."""
    for ranks, seed, ring in itertools.product((2, 3, 4), range(10), ("posted", "barrier")):
        load, network = workload(ranks, seed), costs(ranks, theta=1e-5)
        sent = with_bits(load, 2)
        assert limit_s(load, network) <= simulate(sent, network, semantics=ring).epoch_s * (1 + 1e-12)
    apart = []
    for exchange, (sender, receiver) in zip(workload(4).exchanges, ((0, 1), (2, 3)), strict=False):
        rows = np.zeros((4, 4), np.int64)
        rows[sender, receiver] = 1000
        messages = np.ones(1000)
        apart.append(
            dataclasses.replace(
                exchange, rows=rows, bits=2 * messages.astype(np.uint8), range_squared=messages, alpha_squared=messages
            )
        )
    load, network = dataclasses.replace(workload(4), exchanges=tuple(apart)), costs(4, theta=1e-3, gamma=0.0)
    epoch_s = simulate(load, network).epoch_s
    assert 0.9 * epoch_s < limit_s(load, network) <= epoch_s


def test_bits_change_bytes_and_variance():
    load = workload()
    widths = [with_bits(load, bits) for bits in (1, 2, 4, 8)]
    assert [w.epoch_bytes() for w in widths] == sorted(w.epoch_bytes() for w in widths)
    bounds = [variance_bound(w) for w in widths]
    assert bounds[0] / bounds[1] == pytest.approx(9) and bounds[1] / bounds[2] == pytest.approx(25)
    assert variance_bound(with_bits(load, 32)) == 0
    learned = dataclasses.replace(
        load.exchanges[0], alpha_squared=np.full_like(load.exchanges[0].alpha_squared, np.nan)
    )
    assert variance_bound(with_bits(dataclasses.replace(load, exchanges=(learned,)), 2)) > 0


def test_messages_over_links_of_their_own_take_what_their_pairs_cost():
    """A machine whose pairs share nothing, as shared links and as costs of pairs."""
    emulated = machine.preset("emulated-4")
    load = workload(4)
    shared = simulate(load, emulated.topology())
    assert shared.epoch_s == pytest.approx(simulate(load, emulated.pair_costs()).epoch_s, rel=1e-9)
    capped = machine.preset("four-by-four-100g")
    sixteen = workload(16, seed=3)
    apart = simulate(sixteen, capped.pair_costs()).epoch_s
    assert simulate(sixteen, capped.topology()).epoch_s > apart, "sixteen devices share four NICs"


def test_a_measured_machine_comes_back(tmp_path):
    sizes = np.array([1000, 2000, 4000, 8000, 16000])
    fits = {(s, r): fit(sizes, 1e-7 * (1 + s) * sizes + 1e-4) for s in range(3) for r in range(3) if s != r}
    machine.write(machine.measured(["a", "a", "b"], fits), tmp_path / "machine.toml")
    again = machine.find(str(tmp_path / "machine.toml"))
    assert again.host_of == ("a", "a", "b")
    assert np.allclose(again.pair_costs().theta_s_per_byte, 1e-7 * np.array([[0, 1, 1], [2, 0, 2], [3, 3, 0]]))
    assert (again.pair_costs().low_bytes, again.pair_costs().high_bytes) == (1000, 16000)
    assert machine.measured(["a", "b", "a"], fits).host_of == ("rank0", "rank1", "rank2")


@pytest.mark.parametrize("semantics", ["posted", "eager", "rendezvous", "barrier"])
@pytest.mark.parametrize("links", ["apart", "shared"])
def test_a_timeline_shows_the_epoch_that_is_told(semantics, links):
    """Stages of a rank follow one another without gaps or overlap; the last ends the epoch; messages fit between."""
    load, network = workload(4, 5), costs(4)
    choices = {"semantics": semantics, "links": links, "overlap": True}
    told = simulate(load, network, **choices)
    spans, messages = timeline(load, network, **choices)
    assert max(span.end_s for span in spans) == pytest.approx(told.epoch_s, rel=1e-12)
    for rank in range(4):
        own = sorted((s for s in spans if s.rank == rank), key=lambda s: (s.begin_s, s.end_s))
        assert own[0].begin_s == 0.0
        for one, two in itertools.pairwise(own):
            assert two.begin_s == pytest.approx(one.end_s, abs=1e-12)
    assert len(messages) == sum(int((e.rows > 0).sum()) for e in load.exchanges)
    assert sum(m.num_bytes for m in messages) == told.num_bytes
    mean = sum(m.bits * load.exchanges[0].rows[m.sender, m.receiver] for m in messages if m.name == "layer 1 forward")
    assert mean == pytest.approx(load.exchanges[0].bits.sum())
    flights = [max(m.end_s for m in messages if m.name == f"layer {e.layer} {e.direction}") for e in told.exchanges]
    begun = [min(m.begin_s for m in messages if m.name == f"layer {e.layer} {e.direction}") for e in told.exchanges]
    for flight_s, begin, end in zip((e.flight_s for e in told.exchanges), begun, flights, strict=True):
        assert end - begin <= flight_s + 1e-12
