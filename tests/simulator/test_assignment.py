"""Policies over a whole epoch: every message gets its own group's width."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.assignment import assign_workload, flight_s, knee, tune
from simulator.epoch import variance_bound, with_bits
from simulator.exchanges import at_front, at_fronts, fronts_of, problems_of
from simulator.policy import ProblemError, best_front
from tests.simulator.test_epoch import costs, workload


def rounds_s(load, network):
    """The slowest channel of every round, summed."""
    total, ranks = 0.0, load.ranks
    for exchange in load.exchanges:
        num_bytes = exchange.channel_bytes()
        seconds = np.where(exchange.rows > 0, network.theta_s_per_byte * num_bytes + network.gamma_s, 0.0)
        for step in range(1, ranks):
            total += max(seconds[sender, (sender + step) % ranks] for sender in range(ranks))
    return total


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 5), st.integers(0, 10**6), st.sampled_from([1, 3, 50]), st.floats(0, 1))
def test_what_a_policy_promises_is_what_the_workload_holds(ranks, seed, group_size, lam):
    """Its variance and its rounds' seconds, counted anew from every message's own width."""
    load, network = workload(ranks, seed), costs(ranks)
    assigned = assign_workload(load, network, "adaptive", lam=lam, group_size=group_size)
    assert variance_bound(assigned.workload) == pytest.approx(assigned.variance, rel=1e-9)
    assert assigned.rounds_s == pytest.approx(rounds_s(assigned.workload, network), rel=1e-9)
    assert 0 <= assigned.gap < 0.2
    again = assign_workload(load, network, "adaptive", lam=lam, group_size=group_size)
    for one, two in zip(assigned.workload.exchanges, again.workload.exchanges, strict=True):
        assert np.array_equal(one.bits, two.bits)


def test_fixed_gives_one_width_and_lambda_its_ends():
    load, network = workload(), costs()
    fixed = assign_workload(load, network, "fixed")
    assert {int(b) for e in fixed.workload.exchanges for b in e.bits} == {8}
    least_variance = assign_workload(load, network, "adaptive", lam=1.0, group_size=5)
    assert least_variance.variance == pytest.approx(variance_bound(with_bits(load, 8)))
    least_time = assign_workload(load, network, "adaptive", lam=0.0, group_size=5)
    assert least_time.rounds_s == pytest.approx(rounds_s(with_bits(load, 2), network))
    assert least_time.rounds_s < least_variance.rounds_s
    with pytest.raises(ProblemError, match="there is no policy 'best'"):
        assign_workload(load, network, "best")


def test_adaptive_beats_draws_at_the_same_lambda():
    load, network = workload(4, 7), costs(4)
    spread = [dataclasses.replace(e, range_squared=np.exp(6 * e.range_squared)) for e in load.exchanges]
    load = dataclasses.replace(load, exchanges=tuple(spread))
    adaptive = assign_workload(load, network, "adaptive", lam=0.5, group_size=2)
    for seed in range(5):
        drawn = assign_workload(load, network, "uniform", lam=0.5, group_size=2, key=seed)
        assert adaptive.variance < drawn.variance or adaptive.rounds_s < drawn.rounds_s


def test_learned_coefficients_count_as_one():
    load = workload()
    learned = tuple(dataclasses.replace(e, alpha_squared=np.full(len(e.bits), np.nan)) for e in load.exchanges)
    assigned = assign_workload(dataclasses.replace(load, exchanges=learned), costs(), "adaptive")
    assert np.isfinite(assigned.variance) and np.isnan(assigned.workload.exchanges[0].alpha_squared).all()


def test_the_front_of_tune():
    load, network = workload(), costs(theta=1e-6)
    points = tune(load, network, network, lambdas=[0.0, 0.25, 0.5, 0.75, 1.0], group_sizes=[1, 10])
    assert len(points) == 10
    front = sorted((p for p in points if p.on_front), key=lambda p: p.epoch.epoch_s)
    assert front and knee(points) in front
    assert all(a.variance >= b.variance for a, b in itertools.pairwise(front))
    for point in points:
        beaten = any(f.epoch.epoch_s <= point.epoch.epoch_s and f.variance <= point.variance for f in front)
        assert beaten


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 4), st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 3))
def test_what_is_hidden_costs_nothing(ranks, seed, lam, share):
    """The choice on a front equals trying all its points with max(seconds, hidden), and wastes none of what is free."""
    network = costs(ranks)
    for exchange in workload(ranks, seed).exchanges:
        problems = problems_of(exchange, network, 5, at_once=True)
        if not problems:
            continue
        front = best_front(problems[0])
        hidden_s = share * float(front.seconds[0])
        (chosen,) = at_front([front], lam, hidden_s)
        scores = front.corners.score(np.maximum(front.seconds, hidden_s), front.variance, lam)
        assert chosen.objective == pytest.approx(float(scores.min()), rel=1e-9, abs=1e-12)
        assert chosen.lower_bound <= chosen.objective + 1e-12
        least = front.no_slower_than(hidden_s)
        assert chosen.variance <= least.variance * (1 + 1e-9) or hidden_s < front.seconds[0]


@pytest.mark.parametrize("policy", ["adaptive", "posted", "exact"])
def test_rounds_share_what_is_hidden(policy):
    """Every message has the width that the variance counts; none is later than what hides it or the fastest ring."""
    load, network = workload(4, 3), costs(4, theta=1e-6)
    bare = assign_workload(load, network, policy, lam=0.0, group_size=5)
    hidden = [3 * one.seconds for one in bare.exchanges]
    free = assign_workload(load, network, policy, lam=0.0, group_size=5, hidden_s=hidden)
    assert variance_bound(free.workload) == pytest.approx(free.variance, rel=1e-9)
    assert free.variance < bare.variance
    for one, fastest, limit in zip(free.exchanges, bare.exchanges, hidden, strict=True):
        assert fastest.seconds <= one.seconds <= limit * (1 + 1e-9)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(2, 4),
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.floats(0, 3),
    st.sampled_from(["adaptive", "posted", "total"]),
)
def test_one_budget_is_the_least_sum_over_all_exchanges(ranks, seed, lam, share, policy):
    """No choice of points, every exchange's variance relative to its own at the least seconds, has a lower sum."""
    load, network = workload(ranks, seed), costs(ranks, theta=1e-6)
    fronts = [fronts_of(e, network, policy, 8) for e in load.exchanges]
    fronts = [own for own in fronts if own]
    least_s = [sum(float(front.corners.utopia_s) for front in own) for own in fronts]
    hidden = [share * seconds for seconds in least_s]
    every = [(own, front) for own in fronts for front in own]
    free = [share * front.corners.utopia_s for _, front in every]
    scales = [sum(front.corners.nadir_variance for front in own) or 1.0 for own, _ in every]
    corners = [front.corners for _, front in every]
    span_s = sum(c.nadir_s - c.utopia_s for c in corners) or sum(c.utopia_s for c in corners) or 1.0
    nadir = sum(c.nadir_variance / scale for c, scale in zip(corners, scales, strict=True))
    utopia = sum(c.utopia_variance / scale for c, scale in zip(corners, scales, strict=True))
    span = (nadir - utopia) if nadir - utopia > 1e-12 * nadir else nadir or 1.0

    def score(seconds, variance, at):
        return (1 - lam) * np.maximum(seconds, free[at]) / span_s + lam * variance / scales[at] / span

    def scored(chosen):
        points = [one for own in chosen for one in own]
        return sum(float(score(one.seconds, one.variance, at)) for at, one in enumerate(points))

    least = sum(float(score(front.seconds, front.variance, at).min()) for at, (_, front) in enumerate(every))
    together = scored(at_fronts(fronts, lam, hidden, policy, "joint"))
    assert together == pytest.approx(least, rel=1e-9, abs=1e-12)
    assert together <= scored(at_fronts(fronts, lam, hidden, policy, "each")) * (1 + 1e-9) + 1e-12


def test_a_joint_budget_in_an_assignment():
    load, network = workload(4, 3), costs(4, theta=1e-6)
    for lam in (0.0, 1.0):  # least seconds or least variance: nothing is left to share
        each, joint = (assign_workload(load, network, "posted", lam=lam, budget=b) for b in ("each", "joint"))
        assert joint.variance == pytest.approx(each.variance)
    joint = assign_workload(load, network, "auto", lam=0.5, semantics="rendezvous", budget="joint")
    assert "ring_lp not tried: it has no joint budget" in joint.reason
    assert variance_bound(joint.workload) == pytest.approx(joint.variance, rel=1e-9) and joint.gap >= 0
    with pytest.raises(ProblemError, match="one joint budget goes with adaptive"):
        assign_workload(load, network, "random", budget="joint")


def test_total_has_least_variance_for_its_bytes():
    """All channels at one price a byte: no choice by rounds or at once has as few bytes and less variance."""
    load, network = workload(4, 3), costs(4, theta=1e-6)
    lambdas = np.linspace(0, 1, 41).tolist()
    for exchange in load.exchanges:
        alone = dataclasses.replace(load, exchanges=(exchange,))
        best = [assign_workload(alone, network, "total", lam=lam, group_size=2) for lam in lambdas]
        for policy in ("posted", "adaptive"):
            other = assign_workload(alone, network, policy, lam=0.5, group_size=2)
            size = int(other.workload.epoch_bytes())
            fitting = [one.variance for one in best if one.workload.epoch_bytes() <= size]
            assert min(fitting) <= other.variance * (1 + 1e-9)
    (at_half,) = tune(load, network, network, lambdas=[0.5], group_sizes=[2], policy="total")
    assigned = assign_workload(load, network, "total", lam=0.5, group_size=2)
    assert variance_bound(assigned.workload) == pytest.approx(at_half.variance)


def test_posted_gives_a_posted_ring_less_variance_in_equal_time():
    """Rounds with little to send are no faster than the slowest round: what they have to spare buys widths."""
    load, network = workload(4, 3), costs(4, theta=1e-6)
    by_rounds = assign_workload(load, network, "adaptive", lam=0.5, group_size=2)
    at_once = assign_workload(load, network, "auto", lam=0.5, group_size=2, semantics="posted")
    assert at_once.policy == "posted" and "ring_lp not tried" in at_once.reason
    assert at_once.predicted_s["posted"] < at_once.predicted_s["adaptive"]
    for exchange, one in zip(load.exchanges, by_rounds.exchanges, strict=True):
        (problem,) = problems_of(exchange, network, 2, at_once=True)
        seconds = flight_s(exchange, one, network, "posted")
        assert best_front(problem).least_variance_within(seconds).variance <= one.variance * (1 + 1e-9)
    barrier = assign_workload(load, network, "auto", lam=0.5, group_size=2, semantics="barrier")
    assert barrier.policy == "adaptive" and barrier.variance == by_rounds.variance


def test_auto_asks_the_linear_program_where_rounds_matter():
    pytest.importorskip("highspy")
    load, network = workload(4, 3), costs(4, theta=1e-6)
    found = assign_workload(load, network, "auto", lam=0.5, group_size=5, semantics="rendezvous")
    assert set(found.predicted_s) == {"adaptive", "posted", "ring_lp"}
    assert found.predicted_s[found.policy] <= min(found.predicted_s.values()) * (1 + 1e-9)
    by_ring = assign_workload(load, network, "ring_lp", lam=0.5, group_size=5, semantics="rendezvous")
    assert variance_bound(by_ring.workload) == pytest.approx(by_ring.variance, rel=1e-9)
    assert "ring" in by_ring.exchanges[0].solver
