"""Predicted rounds of an exchange: by hand, and as parts of the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import PairCosts
from simulator.wire import Wire
from simulator.workload import Exchange
from toolkit.train import prices
from toolkit.train.compared import compare, predicted_ends, shorter, slowest

SEMANTICS = ("posted", "rendezvous", "barrier")


def exchange_of(rows, flight_s):
    """8-bit rows of 96 entries: 100 bytes a message."""
    messages, nothing = int(rows.sum()), np.zeros(len(rows))
    return Exchange(
        layer=1, direction="forward", row_entries=96, rows=rows, bits=np.full(messages, 8, np.uint8),
        range_squared=np.ones(messages), alpha_squared=np.ones(messages), encode_s=nothing, flight_s=flight_s,
        central_s=nothing, decode_s=nothing, marginal_s=nothing,
    )  # fmt: skip


# Three ranks, 10 ms a message and 1 us a byte. Rank 0 sends 1,000 bytes to 1 (11 ms) and 5,000 to 2 (15 ms), rank 1
# sends 2,000 to 2 (12 ms) and 5,000 to 0 (15 ms), rank 2 sends 4,000 to 0 (14 ms) and nothing to 1.
# Round 1: 0 to 1, 1 to 2, 2 to 0. Round 2: 0 to 2, 1 to 0.
ROWS = np.array([[0, 10, 50], [50, 0, 20], [40, 0, 0]])
COSTS = PairCosts(theta_s_per_byte=np.full((3, 3), 1e-6), gamma_s=np.full((3, 3), 10e-3))
BY_HAND = {
    # each message by itself, from 0 on: round 1 is over at 0 with 11 out, 14 in; at 1 with 12, 11; at 2 with 14, 12
    "posted": [[14, 12, 14], [15, 15, 15]],
    # round 1 the same; then 1 to 0 and 0 to 2 begin when both ends are there (14) and end at 29
    "rendezvous": [[14, 12, 14], [29, 29, 29]],
    # all wait for the 14 ms of the first round and the 15 ms of the second
    "barrier": [[14, 14, 14], [29, 29, 29]],
}


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_predicted_rounds_by_hand(semantics):
    ends = predicted_ends(ROWS * 100, Wire(network=COSTS, semantics=semantics))
    assert ends * 1e3 == pytest.approx(np.array(BY_HAND[semantics], float))
    # posted: from the start; else from round to round, and rank 1's second holds its waiting for 0 from 12 to 14
    second = 17 if semantics == "rendezvous" else 15
    assert slowest(ends, semantics) * 1e3 == pytest.approx(np.array([14.0, second]))


def test_the_slowest_rank_is_another_in_every_round():
    ends = np.array([[1.0, 5.0], [9.0, 6.0]])
    assert slowest(ends, "rendezvous").tolist() == [5.0, 8.0]
    assert slowest(ends, "posted").tolist() == [5.0, 9.0]


def test_both_sides_of_an_exchange_are_told_alike():
    exchange = exchange_of(ROWS, np.array([0.030, 0.029, 0.031]))
    measured = [(0.016, 0.030), (0.014, 0.029), (0.015, 0.031)]
    rounds = [{(1, "forward"): ends, (2, "forward"): (9.0, 9.0)} for ends in measured]
    (told,) = compare([exchange], rounds, COSTS, "rendezvous")
    assert told["predicted_s"] == pytest.approx(0.029) and told["measured_s"] == 0.031
    assert told["num_bytes"] == 17_000
    assert [one["round"] for one in told["rounds"]] == [1, 2]
    assert [one["predicted_s"] for one in told["rounds"]] == pytest.approx([0.014, 0.017])
    assert [one["measured_s"] for one in told["rounds"]] == pytest.approx([0.016, 0.016])
    (silent,) = compare([exchange], [{(1, "forward"): ()}] * 3, COSTS, "posted")
    assert silent["rounds"] == [] and silent["predicted_s"] == pytest.approx(0.015), "an alltoall tells none"


def test_the_epoch_that_ended_soonest_is_kept():
    kept = shorter({}, {(1, "forward"): (2.0, 5.0), (1, "backward"): ()})
    kept = shorter(kept, {(1, "forward"): (3.0, 4.0), (1, "backward"): ()})
    assert shorter(kept, {(1, "forward"): (1.0, 6.0)}) == {(1, "forward"): (3.0, 4.0), (1, "backward"): ()}


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**32), st.sampled_from(SEMANTICS))
def test_rounds_end_with_their_exchange(ranks, seed, semantics):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 50, (ranks, ranks)) * (rng.random((ranks, ranks)) < 0.8)
    np.fill_diagonal(rows, 0)
    costs = PairCosts(theta_s_per_byte=rng.random((ranks, ranks)), gamma_s=rng.random((ranks, ranks)))
    exchange = exchange_of(rows, np.zeros(ranks))
    ends = predicted_ends(exchange.channel_bytes(), Wire(network=costs, semantics=semantics))
    assert ends.shape == (ranks - 1, ranks) and (np.diff(ends, axis=0) >= 0).all()
    assert ends[-1] == pytest.approx(prices.predicted_s(exchange, costs, semantics))
    total = slowest(ends, semantics).max() if semantics == "posted" else slowest(ends, semantics).sum()
    assert total >= ends[-1].max() * (1 - 1e-12)
    if semantics != "rendezvous":
        assert total == pytest.approx(ends[-1].max())
