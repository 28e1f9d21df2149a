"""Both engines against each other, against SimPy, and against schedules worked out by hand."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import maxplus
from simulator.cost import NO_MESSAGE, CostError
from simulator.events import run_ring
from simulator.maxplus import SEMANTICS, makespan, ring_finish, ring_finish_by_rounds

SIZES = (1, 2, 3, 5, 8, 64)
semantics_of_all = pytest.mark.parametrize("semantics", SEMANTICS)


def draw(n, seed, *, absent=0.0, ties=False, spread=1.0):
    rng = np.random.default_rng(seed)
    cost = rng.lognormal(0, 2, (n, n)) * 1e-4
    start = rng.random(n) * spread * 1e-4 * n
    if ties:
        cost, start = np.ceil(cost * 2e4), np.ceil(start * 2e4)
    cost[rng.random((n, n)) < absent] = NO_MESSAGE
    return cost, start


@semantics_of_all
@settings(max_examples=40, deadline=None)
@given(
    n=st.sampled_from(SIZES),
    seed=st.integers(0, 2**32),
    absent=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
    ties=st.booleans(),
    spread=st.sampled_from([0.0, 1.0, 100.0]),
)
def test_both_engines_agree(semantics, n, seed, absent, ties, spread):
    cost, start = draw(n, seed, absent=absent, ties=ties, spread=spread)
    run = run_ring(cost, start, semantics)
    np.testing.assert_allclose(ring_finish(cost, start, semantics), run.finish_s, rtol=1e-12, atol=0)
    assert run.makespan_s == pytest.approx(float(makespan(cost, start, semantics)), rel=1e-12)


@semantics_of_all
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 9), seed=st.integers(0, 2**32), ties=st.booleans())
def test_simpy_agrees(semantics, n, seed, ties):
    pytest.importorskip("simpy")
    from tests.simulator.simpy_ring import simpy_finish

    cost, start = draw(n, seed, ties=ties)
    np.testing.assert_allclose(
        ring_finish(cost, start, semantics), simpy_finish(cost, start, semantics), rtol=1e-12, atol=0
    )


def test_the_schedule_in_the_docstring():
    rows = re.findall(r"^ +(\d) +(to .*)$", maxplus.__doc__, re.MULTILINE)
    table = {int(i): re.findall(r"to (\d) fr (\d)", cells) for i, cells in rows}
    assert table == {i: [(str((r + i) % 4), str((r - i) % 4)) for r in range(4)] for i in (1, 2, 3)}
    # One costly message: exactly its receiver and, of those who wait for it, its sender are late in that round
    for i, cells in table.items():
        for sender, (receiver, _) in enumerate(cells):
            cost = np.full((4, 4), NO_MESSAGE)
            cost[int(receiver), sender] = 7.0
            late = np.zeros(4)
            late[[int(receiver), sender]] = 7.0
            for semantics in ("rendezvous", "eager", "posted"):
                assert (ring_finish(cost, np.zeros(4), semantics) == late).all(), (i, semantics)


# N = 3, worked out by hand. Round 1: 0 -> 1 (1 s), 1 -> 2 (2 s), 2 -> 0 (4 s). Round 2: 0 -> 2 (8 s), 1 -> 0
# (16 s), 2 -> 1 (32 s). Starts 0, 0, 10.
HAND = {
    # Round 1 ends: 0 -> 1 at 1, 1 -> 2 at 12, 2 -> 0 at 14. So the ranks reach round 2 at 14, 12, 14.
    # Round 2: 0 -> 2 from 14 to 22, 1 -> 0 from 14 to 30, 2 -> 1 from 14 to 46.
    "rendezvous": [30, 46, 46],
    # Round 2 starts for all at 14 and lasts 32.
    "barrier": [46, 46, 46],
    # 0 -> 1 at 1, 1 -> 2 from 0 to 2, 2 -> 0 from 10 to 14: round 2 is reached at 14, 2, 14.
    # 0 -> 2 from 14 to 22, 1 -> 0 from 2 to 18, 2 -> 1 from 14 to 46.
    "eager": [22, 46, 46],
    # Rank 0 sends until 1 and 9, rank 1 until 2 and 18, rank 2 until 14 and 46.
    "posted": [18, 46, 46],
}


@semantics_of_all
def test_a_schedule_by_hand(semantics):
    cost = np.zeros((3, 3))
    for sender, receiver, seconds in [(0, 1, 1), (1, 2, 2), (2, 0, 4), (0, 2, 8), (1, 0, 16), (2, 1, 32)]:
        cost[receiver, sender] = seconds
    start = np.array([0.0, 0.0, 10.0])
    assert ring_finish(cost, start, semantics).tolist() == HAND[semantics]
    assert run_ring(cost, start, semantics).finish_s.tolist() == HAND[semantics]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 12), seed=st.integers(0, 2**32), absent=st.sampled_from([0.0, 0.5]))
def test_the_semantics_are_ordered(n, seed, absent):
    cost, start = draw(n, seed, absent=absent)
    posted, eager, rendezvous, barrier = (
        ring_finish(cost, start, s) for s in ("posted", "eager", "rendezvous", "barrier")
    )
    slack = 1 + 1e-12
    assert (posted <= eager * slack).all()
    assert (eager <= rendezvous * slack).all()
    assert (rendezvous <= barrier * slack).all()


@semantics_of_all
@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 10), seed=st.integers(0, 2**32), data=st.data())
def test_nothing_gets_faster_when_a_message_or_rank_gets_slower(semantics, n, seed, data):
    cost, start = draw(n, seed, absent=0.1)
    before = ring_finish(cost, start, semantics)
    r, s = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    cost[r, s] = max(cost[r, s], 0.0) * 3
    start[s] += 1e-5
    assert (ring_finish(cost, start, semantics) >= before).all()


@semantics_of_all
def test_rotated_ranks_give_rotated_times(semantics):
    cost, start = draw(7, 3)
    turned = ring_finish(np.roll(cost, (2, 2), (0, 1)), np.roll(start, 2), semantics)
    assert (turned == np.roll(ring_finish(cost, start, semantics), 2)).all()


@semantics_of_all
def test_batches_equal_single_rings_and_broadcast(semantics):
    rng = np.random.default_rng(0)
    cost, start = rng.random((3, 1, 6, 6)), rng.random((4, 6))
    cost[0, 0, 2, 1] = NO_MESSAGE
    before = cost.copy(), start.copy()
    batch = ring_finish(cost, start, semantics)
    assert batch.shape == (3, 4, 6)
    assert makespan(cost, start, semantics).shape == (3, 4)
    for i in range(3):
        for j in range(4):
            assert (batch[i, j] == ring_finish(cost[i, 0], start[j], semantics)).all()
    assert (cost == before[0]).all() and (start == before[1]).all(), "inputs are left alone"


@semantics_of_all
def test_without_messages_only_a_barrier_waits(semantics):
    start = np.array([3.0, 1.0, 2.0])
    cost = np.full((3, 3), NO_MESSAGE)
    want = [3.0, 3.0, 3.0] if semantics == "barrier" else start.tolist()
    assert ring_finish(cost, start, semantics).tolist() == want
    assert run_ring(cost, start, semantics).finish_s.tolist() == want


def test_a_free_message_is_waited_for_and_an_absent_one_is_not():
    start = np.array([0.0, 5.0])
    assert ring_finish(np.zeros((2, 2)), start, "rendezvous").tolist() == [5.0, 5.0]
    assert ring_finish(np.full((2, 2), NO_MESSAGE), start, "rendezvous").tolist() == [0.0, 5.0]


@semantics_of_all
def test_records_say_when_each_message_travelled(semantics):
    cost, start = draw(5, 1, absent=0.3)
    run = run_ring(cost, start, semantics)
    exists = np.isfinite(cost) & ~np.eye(5, dtype=bool)
    assert (np.isfinite(run.begin_s) == exists).all() and (np.isfinite(run.end_s) == exists).all()
    np.testing.assert_allclose((run.end_s - run.begin_s)[exists], cost[exists], rtol=1e-9)
    for rank in range(5):
        own = np.concatenate([run.end_s[rank], run.end_s[:, rank], start[rank : rank + 1]])
        if semantics != "barrier":
            assert run.finish_s[rank] == np.nanmax(own)
        sends = [(run.begin_s[r, rank], run.end_s[r, rank]) for r in range(5) if exists[r, rank]]
        sends.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sends)), "one message leaves at a time"


@semantics_of_all
@settings(max_examples=30, deadline=None)
@given(
    n=st.sampled_from(SIZES),
    seed=st.integers(0, 2**32),
    absent=st.sampled_from([0.0, 0.5, 1.0]),
    at_once=st.sampled_from([1, 20, 1 << 20]),
)
def test_costs_made_round_by_round_give_the_same(semantics, n, seed, absent, at_once):
    cost, start = draw(n, seed, absent=absent)
    before, asked = start.copy(), []

    def costs_of(rounds):
        asked.extend(rounds)
        r, i = np.arange(n), np.array(rounds)[:, None]
        return cost[r, (r - i) % n]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maxplus, "MADE_AT_ONCE", at_once)
        lazily = ring_finish_by_rounds(costs_of, start, semantics)
    assert (lazily == ring_finish(cost, start, semantics)).all()
    assert asked == list(range(1, n)) and (start == before).all()


def test_costs_of_rounds_that_cannot_be():
    for costs, message in [
        (np.zeros((1, 3)), r"the costs of 2 rounds of 3 ranks are \[K, N\], not \(1, 3\)"),
        (np.full((2, 3), np.nan), "NO_MESSAGE"),
    ]:
        with pytest.raises(CostError, match=message):
            ring_finish_by_rounds(lambda rounds, costs=costs: costs, np.zeros(3), "eager")
    with pytest.raises(CostError, match=r"starts \[N\], not \(1, 3\)"):
        ring_finish_by_rounds(lambda rounds: np.zeros((2, 3)), np.zeros((1, 3)), "eager")


def test_more_rounds_than_python_recurses():
    start = np.zeros(1200)
    cost = np.full((1200, 1200), NO_MESSAGE)
    for semantics in SEMANTICS:
        assert (run_ring(cost, start, semantics).finish_s == 0).all()


@pytest.mark.parametrize("engine", [ring_finish, run_ring])
@pytest.mark.parametrize(
    ("cost", "start", "semantics", "message"),
    [
        (np.zeros((2, 3)), np.zeros(2), "eager", r"not \(2, 3\) and \(2,\)"),
        (np.zeros((2, 2)), np.zeros(()), "eager", r"not \(2, 2\) and \(\)"),
        (np.zeros((2, 2)), np.zeros(2), "lazy", "not 'lazy'"),
        (np.zeros((2, 2)), np.array([0, np.nan]), "eager", "finite"),
        (np.full((2, 2), np.nan), np.zeros(2), "eager", "NO_MESSAGE"),
        (np.full((2, 2), np.inf), np.zeros(2), "eager", "NO_MESSAGE"),
        (np.full((2, 2), -1.0), np.zeros(2), "eager", "NO_MESSAGE"),
    ],
)
def test_refusals(engine, cost, start, semantics, message):
    with pytest.raises(CostError, match=message):
        engine(cost, start, semantics)


def test_events_take_one_ring():
    with pytest.raises(CostError, match="one ring at a time"):
        run_ring(np.zeros((1, 2, 2)), np.zeros((1, 2)), "eager")
