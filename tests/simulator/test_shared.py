"""Shared links: max-min fairness, and its limits in cases worked out by hand."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import CostError
from simulator.events import run_ring, run_shared
from simulator.fluid import SharedLinks, fair_rates
from simulator.machine import Host, Link, Machine, preset
from simulator.maxplus import SEMANTICS
from simulator.topology import build

semantics_of_all = pytest.mark.parametrize("semantics", SEMANTICS)


def test_fair_rates_by_hand():
    # Link 0 (1 unit) carries a and b, link 1 (10 units) b and c: b gets what link 0 leaves it, c the rest.
    assert fair_rates({1: (0,), 2: (0, 1), 3: (1,)}, [1.0, 10.0]) == {1: 0.5, 2: 0.5, 3: 9.5}
    assert fair_rates({}, [1.0]) == {}


@settings(max_examples=200, deadline=None)
@given(
    capacity=st.lists(st.floats(1e3, 1e12), min_size=1, max_size=6),
    data=st.data(),
)
def test_every_flow_has_a_full_link_on_which_no_other_is_faster(capacity, data):
    links = st.sets(st.integers(0, len(capacity) - 1), min_size=1).map(tuple)
    routes = dict(enumerate(data.draw(st.lists(links, min_size=1, max_size=12))))
    rates = fair_rates(routes, capacity)
    load = [sum(rates[f] for f, route in routes.items() if link in route) for link in range(len(capacity))]
    assert all(used <= limit * (1 + 1e-9) for used, limit in zip(load, capacity, strict=True))
    for flow, route in routes.items():
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and all(rates[f] <= rates[flow] * (1 + 1e-9) for f, other in routes.items() if link in other)
            for link in route
        )


@semantics_of_all
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_links_of_their_own_give_the_times_of_pairs(semantics, seed):
    machine = preset("emulated-4")
    rng = np.random.default_rng(seed)
    num_bytes = rng.integers(0, 1 << 20, (4, 4)) * (rng.random((4, 4)) < 0.8)
    start = rng.random(4)
    shared = run_shared(num_bytes.T, start, semantics, machine.topology())
    costs = machine.pair_costs().ring_costs(num_bytes)
    if semantics == "posted":  # all at once: no egress to share
        ends = np.where(np.isfinite(costs), start[None, :] + costs, np.nan)
        finish = np.fmax(start, np.fmax(np.fmax.reduce(ends, axis=1), np.fmax.reduce(ends, axis=0)))
    else:
        alone = run_ring(costs, start, semantics)
        ends, finish = alone.end_s, alone.finish_s
    np.testing.assert_allclose(shared.finish_s, finish, rtol=1e-9)
    np.testing.assert_allclose(shared.end_s, ends, rtol=1e-9)


def two_devices_behind_each_nic():
    """2 hosts x 2 devices, unlimited inside; a cable of 8 Mbit/s = 1e6 byte/s."""
    link = Link(ends=("h1", "h2"), bandwidth_bit_s=8e6)
    host = Host(name="h", count=2, devices=2, intra_bandwidth_bit_s=8e9)
    return Machine(name="pairs", hosts=(host,), links=(link,)).topology()


def test_two_messages_over_one_cable_take_turns_in_halves():
    # Round 2 of the ring: 0 -> 2 and 1 -> 3 share the cable. 1e6 and 3e6 bytes: both at half rate until the
    # first ends at 2 s; the other has 2e6 bytes left and the cable alone: it ends at 4 s.
    num_bytes = np.zeros((4, 4))
    num_bytes[2, 0], num_bytes[3, 1] = 1e6, 3e6
    run = run_shared(num_bytes, np.zeros(4), "eager", two_devices_behind_each_nic())
    assert run.finish_s.tolist() == pytest.approx([2, 4, 2, 4])


def test_a_message_that_joins_later_slows_the_first_one_down():
    # Alone until 1 s: 1e6 of 3e6 bytes are gone. Then halves: the second's 0.5e6 bytes take 1 s, until 2 s.
    # The first has 1.5e6 left: it ends at 3.5 s.
    num_bytes = np.zeros((4, 4))
    num_bytes[2, 0], num_bytes[3, 1] = 3e6, 0.5e6
    run = run_shared(num_bytes, np.array([0.0, 1.0, 0.0, 0.0]), "eager", two_devices_behind_each_nic())
    assert run.finish_s[[0, 1]].tolist() == pytest.approx([3.5, 2.0])
    assert run.begin_s[3, 1] == 1.0


def test_a_shared_nic_halves_what_pairs_promise():
    topology = preset("four-by-four-100g").topology()
    num_bytes = np.full((16, 16), 1e7)
    np.fill_diagonal(num_bytes, 0)
    shared = run_shared(num_bytes, np.zeros(16), "rendezvous", topology).makespan_s
    alone = run_ring(topology.pair_costs().ring_costs(num_bytes), np.zeros(16), "rendezvous").makespan_s
    # A host's 4 devices send 4 x 12 messages over one NIC of 12.5e9 byte/s: no schedule is faster than this
    assert shared >= 48 * 1e7 / 12.5e9
    assert shared > 2 * alone


@semantics_of_all
def test_the_fluid_moves_all_bytes_at_no_more_than_capacity(semantics):
    topology = preset("four-by-four-100g").topology()
    num_bytes = np.random.default_rng(0).integers(1, 1 << 20, (16, 16)).astype(float)
    np.fill_diagonal(num_bytes, 0)
    run = run_shared(num_bytes, np.zeros(16), semantics, topology)
    assert np.isfinite(run.end_s[~np.eye(16, dtype=bool)]).all()
    took = np.nanmax(run.end_s) - np.nanmin(run.begin_s)
    for link, capacity in enumerate(topology.capacity_bytes_per_s):
        carried = sum(num_bytes[r, s] for s in range(16) for r in range(16) if link in topology.routes[s][r])
        assert carried <= capacity * took * (1 + 1e-9)
    alone = topology.pair_costs().ring_costs(num_bytes.T)
    seconds = (run.end_s - run.begin_s)[~np.eye(16, dtype=bool)]
    assert (seconds >= alone[~np.eye(16, dtype=bool)] * (1 - 1e-9)).all(), "nothing beats having the link alone"


def everyone(links):
    """What SharedLinks._component may be, and is quicker than: all flows under way."""
    links._touched = set()
    return sorted(set().union(*links._on))


@semantics_of_all
@pytest.mark.parametrize(("machine", "n"), [("four-by-four-100g", 16), ("fat-tree-64", 64)])
def test_sharing_out_a_component_is_sharing_out_all(semantics, machine, n, monkeypatch):
    """Rates of flows that no chain of links joins to the one that came or went don't change."""
    topology, rng = preset(machine).topology(), np.random.default_rng(n)
    sizes = rng.integers(1, 1 << 20, (n, n)) * (rng.random((n, n)) < 100 / n**2 + 0.03 * (semantics != "posted"))
    start = rng.random(n) * 1e-4
    fast = run_shared(sizes, start, semantics, topology)
    monkeypatch.setattr(SharedLinks, "_component", everyone)
    plain = run_shared(sizes, start, semantics, topology)
    np.testing.assert_allclose(fast.end_s, plain.end_s, rtol=1e-9)
    np.testing.assert_allclose(fast.finish_s, plain.finish_s, rtol=1e-9)


def test_refusals():
    topology = preset("emulated-4").topology()
    with pytest.raises(CostError, match="messages are of 2 ranks, the topology has 4 devices"):
        run_shared(np.zeros((2, 2)), np.zeros(2), "eager", topology)
    with pytest.raises(CostError, match="0 bytes or more"):
        run_shared(np.full((4, 4), -1.0), np.zeros(4), "eager", topology)
    with pytest.raises(CostError, match="0 bytes or more"):
        run_shared(np.full((4, 4), np.nan), np.zeros(4), "eager", topology)


def test_equal_paths_are_spread_and_stay_put():
    topology = preset("fat-tree-64").topology()
    spines = {link[1] for r in range(8, 64) for link in (topology.links[i] for i in topology.routes[0][r])}
    assert len([name for name in spines if name.startswith("spine")]) > 4
    again = preset("fat-tree-64").topology()
    assert again.routes == topology.routes


def test_no_route_leads_through_a_foreign_host():
    # A triangle of hosts of which one is only a neighbour: h1 - h2 - h3 has no path from h1 to h3
    graph = nx.DiGraph()
    for name in ("a", "b", "c"):
        graph.add_node(name, kind="host", host=name)
        graph.add_node(f"{name}/0", kind="device", host=name)
        for pair in ((name, f"{name}/0"), (f"{name}/0", name)):
            graph.add_edge(*pair, bandwidth_bit_s=8.0, latency_s=0.0)
    for pair in (("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")):
        graph.add_edge(*pair, bandwidth_bit_s=8.0, latency_s=0.0)
    with pytest.raises(CostError, match="no path from a/0 to"):
        build(graph, ("a/0", "b/0", "c/0"))
