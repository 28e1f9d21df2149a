"""Which pairs are measured together."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.comm.calibrate import schedule


@given(st.integers(1, 40), st.booleans())
def test_every_pair_once_and_no_rank_twice_in_a_round(ranks, at_once):
    rounds = schedule(ranks, at_once=at_once)
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(ranks), 2))
    for pairs in rounds:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy)) and (at_once or len(pairs) == 1)


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (4, 3), (5, 5), (16, 15)])
def test_a_tournament_has_as_few_rounds_as_can_be(ranks, rounds):
    assert len(schedule(ranks, at_once=True)) == rounds
