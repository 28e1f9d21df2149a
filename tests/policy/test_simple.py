import numpy as np
import pytest

from simulator.policy import exact, simple
from simulator.policy.problem import ProblemError, RoundProblem
from tests.policy.instances import lognormal

PROBLEM = lognormal(4, 300, short=3)


def test_fixed_is_one_width_and_says_what_it_loses():
    answer = simple.fixed(PROBLEM, 0.5, 4)
    assert all((b == 4).all() for b in answer.bits)
    best = exact.solve(PROBLEM, 0.5)
    assert answer.lower_bound == pytest.approx(best.objective) and answer.objective > best.objective
    assert answer.gap == pytest.approx(1 - best.objective / answer.objective)
    with pytest.raises(ProblemError, match="fixed at 3 bits, but this problem allows 2, 4, 8"):
        simple.fixed(PROBLEM, 0.5, 3)


def test_uniform_draws_every_width_equally_often():
    counts = np.bincount(np.concatenate(simple.uniform(PROBLEM, 0.5, 7).bits), minlength=9)[[2, 4, 8]]
    assert np.abs(counts / 1200 - 1 / 3).max() < 4.5 * np.sqrt(2 / 9 / 1200)


@pytest.mark.parametrize("policy", [simple.uniform, simple.random])
def test_draws_belong_to_the_key_and_the_channel(policy):
    one = policy(PROBLEM, 0.5, 7)
    assert all((a == b).all() for a, b in zip(one.bits, policy(PROBLEM, 0.5, 7).bits, strict=True))
    assert any((a != b).any() for a, b in zip(one.bits, policy(PROBLEM, 0.5, 8).bits, strict=True))
    turned = policy(RoundProblem(channels=PROBLEM.channels[::-1]), 0.5, 7)
    assert all((a == b).all() for a, b in zip(one.bits, turned.bits[::-1], strict=True))
    assert (one.bits[0] != one.bits[1]).any()


def test_random_takes_the_best_ones_time_and_has_more_variance():
    best, blind = exact.solve(PROBLEM, 0.5), simple.random(PROBLEM, 0.5, 1)
    assert 0.98 * best.seconds < blind.seconds <= best.seconds
    assert blind.variance > 1.2 * best.variance


def test_draws_are_pinned():
    """A resumed run of a later version must draw the same widths."""
    assert simple.uniform(PROBLEM, 0.5, 7).bits[2][:12].tolist() == [2, 8, 4, 8, 4, 8, 8, 8, 8, 2, 8, 8]
