"""Rules over a tuned front, and what a period costs."""

import dataclasses

import numpy as np
import pytest

from simulator.assignment import assign_workload, flight_s, knee, marked, tune
from simulator.machine import preset
from simulator.tuning import (
    OVERHEAD_SHARE,
    Fixed,
    TuningError,
    fixed,
    held_up_s,
    hidden_s,
    nothing_to_gain,
    periods,
    pick,
    shortest,
)
from simulator.wire import Wire
from tests.simulator.test_epoch import costs, workload

LAMBDAS = [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.fixture
def tuned():
    load, network = workload(4, 3), costs(4, theta=1e-6)
    return load, network, tune(load, network, network, lambdas=LAMBDAS, group_sizes=[1, 5], hidden_s=hidden_s(load))


def test_rules_take_the_best_that_fits(tuned):
    _, _, points = tuned
    assert pick(points, "knee") is knee(points)
    limit = sorted(p.epoch.epoch_s for p in points)[4]
    chosen = pick(points, "within_seconds", limit)
    assert chosen.epoch.epoch_s <= limit
    assert not any(p.epoch.epoch_s <= limit and p.variance < chosen.variance for p in points)
    limit = sorted(p.variance for p in points)[4]
    chosen = pick(points, "within_variance", limit)
    assert chosen.variance <= limit
    assert not any(p.variance <= limit and p.epoch.epoch_s < chosen.epoch.epoch_s for p in points)
    hidden = pick(points, "hidden")
    assert hidden.lam == 0 and hidden.variance == min(p.variance for p in points if p.lam == 0)
    with pytest.raises(TuningError, match=r"no choice has an epoch of 1e-06 s or less: the fastest takes 0\.1"):
        pick(points, "within_seconds", 1e-6)
    with pytest.raises(TuningError, match="no choice has a variance of 0 or less"):
        pick(points, "within_variance", 0.0)


def test_fixed_widths_stand_beside_the_grid():
    """A fixed width that beats the grid's knee is the choice; no rule passes one over."""
    load, network = workload(4), preset("emulated-4")
    wire = Wire(network=network.topology())
    points = tune(load, network.pair_costs(), wire.network, lambdas=LAMBDAS, group_sizes=[2, 20])
    choices = marked([*points, *fixed(load, wire)])
    for rule, limit in (("knee", 0.0), ("hidden", 0.0), ("within_seconds", 0.0906), ("within_variance", 10.0)):
        best = pick(choices, rule, limit)
        faster = [c for c in choices if c.epoch.epoch_s <= best.epoch.epoch_s and c.variance < best.variance]
        assert not faster, rule
    assert {c.width for c in choices if isinstance(c, Fixed) and c.on_front} == {8, 32}


def test_less_than_a_hundredth_is_not_worth_its_variance(tuned):
    load, network, points = tuned
    every = fixed(load, Wire(network=network))
    plain = every[-1]
    assert plain.width == 32 and plain.variance == 0
    seconds = plain.epoch.epoch_s

    def at(share):
        """All points and widths but float32 save this share."""
        epoch = dataclasses.replace(plain.epoch, epoch_s=(1 - share) * seconds)
        return marked([*(dataclasses.replace(c, epoch=epoch) for c in [*points, *every[:-1]]), plain])

    for rule, limit in (("knee", 0.0), ("hidden", 0.0), ("within_variance", 1e9)):
        assert getattr(pick(at(0.009), rule, limit), "width", None) == 32
        assert pick(at(0.011), rule, limit).epoch.epoch_s < seconds
    assert nothing_to_gain(at(0.009)) and not nothing_to_gain(at(0.011))
    asked = pick(at(0.009), "within_seconds", 0.995 * seconds)
    assert asked.epoch.epoch_s < seconds, "a limit of seconds asks for it"


def least(load, network):
    """Every exchange with its fastest widths."""
    return zip(load.exchanges, assign_workload(load, network, "adaptive", lam=0.0, group_size=1).exchanges, strict=True)


def test_what_hides_buys_exactness_for_nothing(tuned):
    """Messages under products: less variance at lambda 0, and not a later end of any exchange's products."""
    load, network, _ = tuned
    bare = tune(load, network, network, lambdas=[0.0], group_sizes=[1])[0]
    some = [2 * e.central_s.min() + flight_s(e, one, network, "barrier") for e, one in least(load, network)]
    free = tune(load, network, network, lambdas=[0.0], group_sizes=[1], hidden_s=some)[0]
    assert free.variance < bare.variance
    slow = dataclasses.replace(
        load, exchanges=tuple(dataclasses.replace(e, central_s=np.full(4, 10.0)) for e in load.exchanges)
    )
    every = tune(slow, network, network, lambdas=[0.0], group_sizes=[5], hidden_s=hidden_s(slow))[0]
    assert every.bits == 8.0 and every.epoch.waiting_s == pytest.approx(0.0)


def test_a_knee_among_equal_points_is_one_of_them(tuned):
    """Where nothing travels all choices are alike: no warning, the largest groups."""
    load, network, _ = tuned
    silent = dataclasses.replace(load, exchanges=())
    points = tune(silent, network, network, lambdas=[0.0, 1.0], group_sizes=[1, 5])
    with np.errstate(all="raise"):
        assert knee(points).group_size == 5


def test_a_period_pays_for_its_assignment(tuned):
    load, network, points = tuned
    point = dataclasses.replace(points[0], solve_s=3.0, epoch=dataclasses.replace(points[0].epoch, epoch_s=0.5))
    quick = held_up_s(load, network, 0.0, 5, 0.5)
    sent = sum(e.rows.sum(axis=1) for e in load.exchanges)
    least = 1e-6 * (8 * sent[1:].max() + sent.sum())
    assert quick >= least, "ranges to rank 0, widths back"
    assert held_up_s(load, network, 3.0, 5, 0.5) == pytest.approx(quick + 0.5), "3 s, of which 5 epochs hide 2.5"
    found = periods(load, network, point, [100, 2, 10], lead=5)
    assert [p.epochs for p in found] == [2, 10, 100]
    assert found[0].held_up_s == pytest.approx(quick + 2.0), "a lead is a period at most"
    for period in found:
        assert period.epoch_s == pytest.approx(0.5 + period.held_up_s / period.epochs)
        assert 0 < period.share < 1
    taken = shortest(found)
    assert all(p.share > OVERHEAD_SHARE for p in found if p.epochs < taken.epochs)
    assert shortest(found[:1]).epochs == 2
