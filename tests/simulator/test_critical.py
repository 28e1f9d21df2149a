"""The critical path adds up to the epoch, and shortening what isn't on it changes nothing."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import PairCosts
from simulator.critical import PathError, Piece, by_stage, critical_path
from simulator.epoch import simulate
from simulator.machine import preset
from simulator.timeline import Span, Transfer
from simulator.tracks import timeline
from tests.simulator.test_epoch import costs, workload

CHOICES = [
    {"semantics": semantics, "links": links, "overlap": overlap}
    for semantics, links in (
        ("posted", "apart"), ("posted", "shared"), ("eager", "apart"), ("rendezvous", "apart"), ("barrier", "apart"),
    )
    for overlap in (True, False)
]  # fmt: skip


def check(load, network, choices):
    path = critical_path(*timeline(load, network, **choices))
    told = simulate(load, network, **choices)
    assert sum(piece.seconds for piece in path) == pytest.approx(told.epoch_s, abs=1e-9, rel=1e-12)
    assert path[0].begin_s == 0 and path[-1].end_s == pytest.approx(told.epoch_s, rel=1e-12)
    for one, two in itertools.pairwise(path):
        assert two.begin_s == one.end_s and one.seconds > 0
    assert sum(s for _, _, s in by_stage(path)) == pytest.approx(told.epoch_s, rel=1e-12)
    assert all(piece.stage != "wait" for piece in path)
    return path


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 6), st.integers(0, 10**6), st.sampled_from(CHOICES), st.sampled_from([0.0, 1e-9, 1e-6, 1e-5]))
def test_pieces_add_up_to_the_epoch(ranks, seed, choices, theta):
    check(workload(ranks, seed), costs(ranks, theta), choices)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(["posted", "eager", "rendezvous", "barrier"]))
def test_over_shared_links_too(seed, semantics):
    check(workload(4, seed), preset("nvlink-4").topology(), {"semantics": semantics, "links": "apart", "overlap": True})


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_ties_and_stages_of_no_length_are_no_trouble(ranks, seed):
    load = workload(ranks, seed)
    same = np.full(ranks, 0.01)
    exchanges = tuple(
        dataclasses.replace(e, encode_s=0 * same, decode_s=0 * same, central_s=same, marginal_s=same)
        for e in load.exchanges
    )
    load = dataclasses.replace(load, exchanges=exchanges, held_s=0 * same, dense_s=0 * same)
    shape = (ranks, ranks)
    for theta in (0.0, 1e-6):
        flat = PairCosts(theta_s_per_byte=np.full(shape, theta), gamma_s=np.full(shape, 0.01))
        for choices in CHOICES:
            check(load, flat, choices)


def test_a_path_is_critical():
    """A tenth off each rank's stage on the path shortens the epoch; off stages beside it, it does not."""
    load, network = workload(4, 11), costs(4, 1e-5)
    choices = CHOICES[0]
    base = simulate(load, network, **choices).epoch_s
    on_path = {(piece.rank, piece.stage) for piece in check(load, network, choices)}
    for rank in range(4):
        dense_s = load.dense_s.copy()
        dense_s[rank] -= 1e-7
        shorter = simulate(dataclasses.replace(load, dense_s=dense_s), network, **choices).epoch_s
        assert (shorter < base) == ((rank, "dense") in on_path)


def test_a_path_goes_to_the_sender_of_what_was_waited_for():
    """Rank 1 waits for rank 0's message, which left when rank 0 had encoded."""
    spans = [
        Span(rank=0, name="encode", begin_s=0, end_s=3),
        Span(rank=0, name="central", begin_s=3, end_s=4),
        Span(rank=0, name="wait", begin_s=4, end_s=6),
        Span(rank=1, name="central", begin_s=0, end_s=1),
        Span(rank=1, name="wait", begin_s=1, end_s=5),
        Span(rank=1, name="marginal", begin_s=5, end_s=6),
        Span(rank=0, name="weight gradients", begin_s=6, end_s=7),
        Span(rank=1, name="weight gradients", begin_s=6, end_s=7),
    ]
    path = critical_path(spans, [Transfer(sender=0, receiver=1, begin_s=3, end_s=5, name="layer 1 forward")])
    assert [(piece.rank, piece.stage, piece.seconds) for piece in path] == [
        (0, "encode", 3),
        (0, "message to 1, layer 1 forward", 2),
        (1, "marginal", 1),
        (1, "weight gradients", 1),
    ]


def test_gaps_are_told():
    with pytest.raises(PathError, match="has gaps"):
        critical_path([Span(rank=0, name="dense", begin_s=1, end_s=2)], [])
    assert critical_path([], []) == ()
    assert by_stage([Piece(rank=0, stage="a", begin_s=0, end_s=1), Piece(rank=0, stage="a", begin_s=2, end_s=4)]) == [
        (0, "a", 3)
    ]


def test_stages_shorter_than_a_rounding_end_the_search_too():
    spans = [
        Span(rank=0, name="a", begin_s=0, end_s=1 - 3e-12),
        Span(rank=0, name="b", begin_s=1, end_s=1 + 1e-12),
        Span(rank=0, name="c", begin_s=1 + 1e-12, end_s=2),
    ]
    path = critical_path(spans, [])
    assert [piece.stage for piece in path] == ["a", "b", "c"]
    assert sum(piece.seconds for piece in path) == pytest.approx(2, abs=1e-12)
