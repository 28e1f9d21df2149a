import itertools
from dataclasses import replace

import numpy as np
import pytest
from pyomo.environ import Reals

from simulator.policy import exact, ring_lp, solvers
from simulator.policy.hull import steps_of
from simulator.policy.problem import Channel, ProblemError, RoundProblem, grouped
from tests.policy.instances import channel

SOLVERS = [
    pytest.param(
        name, marks=pytest.mark.skipif(not solvers.available(name), reason=f"the solver {name} is not installed")
    )
    for name in ("glpk", "highs")
]


def ring(ranks, groups, *, seed=0, size=10, bits=(2, 4, 8), spread=4.0):
    """A ring whose channels differ in messages, as parts of a graph do."""
    draw = np.random.default_rng(seed)
    return [
        RoundProblem(
            channels=tuple(
                Channel(
                    groups=grouped(draw.lognormal(0, 1.5, int(groups * size * draw.uniform(1, spread))), size),
                    entries=64,
                    theta_s_per_byte=1e-9,
                    gamma_s=1e-6,
                    sender=rank,
                    receiver=(rank + step) % ranks,
                )
                for rank in range(ranks)
            ),
            bits=bits,
        )
        for step in range(1, ranks)
    ]


def by_hand(ranks, times):
    """A ring of given seconds (theta 0): {(sender, receiver): s}."""
    rounds = []
    for step in range(1, ranks):
        ends = [(d, (d + step) % ranks) for d in range(ranks) if (d, (d + step) % ranks) in times]
        rounds.append(
            RoundProblem(channels=tuple(channel([1.0], theta=0.0, gamma=times[end], ends=end) for end in ends))
        )
    return rounds, tuple(p.fill(0) for p in rounds)


def test_the_recursion_by_hand():
    """Round 1: 0 -> 1 takes 5, the others 1; round 2: 2 -> 1 takes 2 and leaves at 1, while 0 -> 1 is coming in."""
    rounds, bits = by_hand(3, {(0, 1): 5.0, (1, 2): 1.0, (2, 0): 1.0, (0, 2): 1.0, (1, 0): 1.0, (2, 1): 2.0})
    assert ring_lp.ring_seconds(rounds, bits, 3, serial_ingress=False) == 6  # rank 0 reaches round 2 at 5
    assert ring_lp.ring_seconds(rounds, bits, 3) == 7  # rank 1's link is busy until 5, then 2 more


def test_without_a_serial_ingress_it_is_the_eager_ring():
    maxplus = pytest.importorskip("simulator.maxplus")
    for ranks in (2, 3, 5):
        rounds = ring(ranks, 3, seed=ranks)
        bits = tuple(p.fill(0) for p in rounds)
        cost = np.zeros((ranks, ranks))
        for problem, some in zip(rounds, bits, strict=True):
            for c, b in zip(problem.channels, some, strict=True):
                cost[c.receiver, c.sender] = c.seconds_at(c.bytes_at(b))
        eager = float(maxplus.makespan(cost, np.zeros(ranks), "eager"))
        assert ring_lp.ring_seconds(rounds, bits, ranks, serial_ingress=False) == pytest.approx(eager, rel=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_bound_below_brute_force_below_answer(solver):
    rounds = [
        RoundProblem(
            channels=tuple(
                channel([5.0 + d, 1.0][: 1 + (d == 0)], 5 + 3 * d, entries=64, gamma=1e-8, ends=(d, (d + r) % 3))
                for d in range(3)
            )
        )
        for r in (1, 2)
    ]
    corners = ring_lp.corners_of(rounds, 3)
    limit_s = corners.utopia_s + 0.4 * (corners.nadir_s - corners.utopia_s)
    best = {0.5: np.inf, None: np.inf}
    counts = [len(c.groups.size) for p in rounds for c in p.channels]
    for choice in itertools.product((2, 4, 8), repeat=sum(counts)):
        cut = np.split(np.array(choice, np.uint8), np.cumsum(counts)[:-1])
        bits = (tuple(cut[:3]), tuple(cut[3:]))
        seconds = ring_lp.ring_seconds(rounds, bits, 3)
        variance = sum(p.variance(b) for p, b in zip(rounds, bits, strict=True))
        best[0.5] = min(best[0.5], float(corners.score(seconds, variance, 0.5)))
        best[None] = min(best[None], variance) if seconds <= limit_s else best[None]
    answer = ring_lp.at(rounds, 3, 0.5, solver)
    assert answer.lower_bound <= best[0.5] <= answer.objective * (1 + 1e-9)
    answer = ring_lp.within(rounds, 3, limit_s, solver)
    assert answer.seconds <= limit_s * (1 + 1e-12)
    assert answer.lower_bound <= best[None] <= answer.variance * (1 + 1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_lands_near_its_bound_and_beats_the_sum_of_rounds(solver):
    rounds = ring(4, 60)
    separate = [exact.solve(p, 0.5) for p in rounds]
    seconds = ring_lp.ring_seconds(rounds, tuple(a.bits for a in separate), 4)
    answer = ring_lp.within(rounds, 4, seconds, solver)
    assert answer.gap < 0.01 and answer.seconds <= seconds * (1 + 1e-12)
    assert answer.variance < sum(a.variance for a in separate)
    assert answer.seconds <= answer.barrier_s * (1 + 1e-12)
    assert ring_lp.at(rounds, 4, 0.5, solver).gap < 0.02


@pytest.mark.parametrize("solver", SOLVERS)
def test_ends_of_lambda(solver):
    rounds = ring(3, 5)
    corners = ring_lp.corners_of(rounds, 3)
    fastest = ring_lp.at(rounds, 3, 0.0, solver)
    assert fastest.seconds == pytest.approx(corners.utopia_s, rel=1e-6)
    lowest = sum(p.variance(p.fill(0)) for p in rounds)
    assert fastest.variance < 0.8 * lowest  # what fits is free
    assert ring_lp.at(rounds, 3, 1.0, solver).variance == pytest.approx(corners.utopia_variance, rel=1e-6)


def test_refusals():
    rounds = ring(3, 2)
    with pytest.raises(ProblemError, match="no ring ends within"):
        ring_lp.within(rounds, 3, 0.0)
    with pytest.raises(ProblemError, match="rounds 2 and 1 of the ring stand in the wrong order"):
        ring_lp.at(rounds[::-1], 3, 0.5)
    mixed = RoundProblem(channels=(rounds[0].channels[0], rounds[1].channels[1]))
    with pytest.raises(ProblemError, match=r"all send equally far, not \[1, 2\]"):
        ring_lp.at([mixed], 3, 0.5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_program_allows_what_the_recursion_takes(solver):
    """Nothing to choose: the program has a solution within the ring's own time, and none within less."""
    for seed in range(4):
        draw = np.random.default_rng(seed)
        times = {(d, e): draw.uniform(1, 9) for d in range(4) for e in range(4) if d != e}
        rounds, bits = by_hand(4, times)
        seconds = ring_lp.ring_seconds(rounds, bits, 4)
        assert ring_lp.within(rounds, 4, seconds * (1 + 1e-9), solver).seconds == seconds
        steps = [[steps_of(c, p.ladder(c)) for c in p.channels] for p in rounds]
        model = ring_lp._model(steps, 4, ring_lp.corners_of(rounds, 4), 0.5, seconds)
        model.end.setub(-1e-3)
        model.end.setlb(None)
        model.end.domain = Reals
        with pytest.raises(solvers.SolverError):
            solvers.solve_model(model, solver, 10.0, 0.0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_least_time_within_a_variance(solver):
    """Bound below brute force below answer, at the variance of an answer in the middle."""
    rounds = [
        RoundProblem(
            channels=tuple(
                channel([5.0 + d, 1.0][: 1 + (d == 0)], 5 + 3 * d, entries=64, gamma=1e-8, ends=(d, (d + r) % 3))
                for d in range(3)
            )
        )
        for r in (1, 2)
    ]
    counts = [len(c.groups.size) for p in rounds for c in p.channels]
    points = []
    for choice in itertools.product((2, 4, 8), repeat=sum(counts)):
        cut = np.split(np.array(choice, np.uint8), np.cumsum(counts)[:-1])
        bits = (tuple(cut[:3]), tuple(cut[3:]))
        variance = sum(p.variance(b) for p, b in zip(rounds, bits, strict=True))
        points.append((ring_lp.ring_seconds(rounds, bits, 3), variance))
    corners = ring_lp.corners_of(rounds, 3)
    for variance in (corners.utopia_variance, 0.05 * corners.nadir_variance, 0.5 * corners.nadir_variance, 99.0):
        answer = ring_lp.least_time_within(rounds, 3, variance, solver, tolerance=0.01)
        best = min(s for s, v in points if v <= variance * (1 + 1e-12))
        assert answer.variance <= variance * (1 + 1e-12)
        assert answer.lower_bound <= best <= answer.seconds * (1 + 1e-12)
        assert answer.objective == answer.seconds and answer.gap >= 0
    assert answer.seconds == pytest.approx(corners.utopia_s, rel=0.01)
    with pytest.raises(ProblemError, match="no assignment has a variance of"):
        ring_lp.least_time_within(rounds, 3, corners.utopia_variance / 2, solver)


@pytest.mark.parametrize("solver", SOLVERS)
def test_less_time_at_the_variance_of_a_front_for_each_round(solver):
    rounds = ring(4, 40)
    separate = [exact.solve(p, 0.5) for p in rounds]
    variance = sum(a.variance for a in separate)
    answer = ring_lp.least_time_within(rounds, 4, variance, solver)
    assert answer.variance <= variance and answer.gap < 0.02
    assert answer.seconds < ring_lp.ring_seconds(rounds, tuple(a.bits for a in separate), 4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_oddities(solver):
    """Zero betas, ties, one channel of one group, free bytes, free messages."""
    odd = [
        [RoundProblem(channels=(channel([0.0, 0.0], ends=(0, 1)), channel([1.0, 1.0, 1.0], ends=(1, 0))))],
        [RoundProblem(channels=(channel([1.0], ends=(0, 1)),))],
        [RoundProblem(channels=(channel([2.0, 1.0], theta=0.0, ends=(0, 1)), channel([1.0], gamma=0.0, ends=(1, 0))))],
        [RoundProblem(channels=(channel([1e12, 1.0], ends=(0, 1)), channel([1.0], ends=(1, 0))), bits=(0, 2, 8))],
    ]
    for rounds in odd:
        for lam in (0.0, 0.5, 1.0):
            answer = ring_lp.at(rounds, 2, lam, solver)
            assert answer.lower_bound <= answer.objective and answer.variance == rounds[0].variance(answer.bits[0])
            assert answer.seconds == ring_lp.ring_seconds(rounds, answer.bits, 2)


def test_out_of_time_is_feasible_and_its_mixtures_are_no_bound(monkeypatch):
    rounds = ring(3, 5)
    whole = ring_lp.at(rounds, 3, 0.5)
    solve = ring_lp.solve_model
    monkeypatch.setattr(ring_lp, "solve_model", lambda *given: (solve(*given), "feasible")[1])
    cut = ring_lp.at(rounds, 3, 0.5)
    assert (whole.status, cut.status) == ("heuristic", "feasible")
    assert cut.objective == whole.objective and cut.lower_bound == 0 < whole.lower_bound


@pytest.mark.skipif(not solvers.available("highs"), reason="the solver highs is not installed")
@pytest.mark.parametrize(("bound", "proven"), [(0.0, False), (1e9, True)])
def test_only_the_mixtures_prove_a_time_too_short(bound, proven, monkeypatch):
    """Whole widths that miss a variance prove nothing: the bound moves where the relaxation misses it, too."""
    rounds = ring(3, 5)
    corners = ring_lp.corners_of(rounds, 3)
    poor = replace(ring_lp.within(rounds, 3, corners.nadir_s), variance=1e9, lower_bound=bound)
    monkeypatch.setattr(ring_lp, "within", lambda *given, **options: poor)
    answer = ring_lp.least_time_within(rounds, 3, corners.nadir_variance, tolerance=0.1)
    assert answer.seconds == pytest.approx(corners.nadir_s)
    assert answer.lower_bound >= 0.9 * corners.nadir_s if proven else answer.lower_bound == corners.utopia_s
