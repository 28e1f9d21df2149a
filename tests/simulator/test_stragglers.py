import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simulator.keyed import mix64
from simulator.maxplus import makespan
from simulator.stragglers import (
    Bursts,
    Constant,
    Lognormal,
    Recorded,
    Straggler,
    StragglerError,
    Stragglers,
    paired_difference,
    parse,
    uniform,
)

EPOCHS = np.arange(400)


def one(what, model, where=None, seed=1):
    return Stragglers(seed=seed, members=(Straggler(what=what, model=model, where=where),))


@settings(deadline=None)
@given(key=st.integers(0, 2**64 - 1), where=st.integers(0, 2**40), epoch=st.integers(0, 2**40))
def test_the_array_hash_is_the_scalar_hash(key, where, epoch):
    # mix64's first word enters as key: mix64(a, b, c) folds three words, uniform's key is what one fold has left
    inner = mix64(key)
    want = ((mix64(key, where, epoch) >> 11) + 0.5) * 2.0**-53
    assert float(uniform(inner, where, epoch)) == want


def test_uniform_is_uniform_and_never_0_or_1():
    draws = uniform(mix64(3), np.arange(100)[:, None], np.arange(1000)[None, :])
    assert draws.shape == (100, 1000)
    assert draws.min() > 0 and draws.max() < 1
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.015


def test_the_draws_do_not_depend_on_order_company_or_number_of_ranks():
    slow = one("device", Lognormal(sigma=0.5))
    whole = slow.device_factors(8, EPOCHS)
    assert (slow.device_factors(8, EPOCHS[::-1]) == whole[::-1]).all()
    assert (slow.device_factors(3, [7]) == whole[7:8, :3]).all()
    links = one("link", Lognormal(sigma=0.5))
    assert (links.link_factors(3, EPOCHS) == links.link_factors(8, EPOCHS)[:, :3, :3]).all()
    more = Stragglers(seed=1, members=(Straggler(what="device", model=Constant(factor=2.0), where=(0,)), *slow.members))
    assert (more.device_factors(8, EPOCHS)[:, 1:] == whole[:, 1:]).all()
    assert (more.without(0).device_factors(8, EPOCHS) == whole).all()
    assert not (one("device", Lognormal(sigma=0.5), seed=2).device_factors(8, EPOCHS) == whole).any()


def test_streams_tell_models_at_one_place_apart():
    a, b = (Straggler(what="device", model=Lognormal(sigma=1), stream=i) for i in (0, 1))
    first, second = (Stragglers(members=(m,)).device_factors(4, EPOCHS) for m in (a, b))
    assert abs(np.corrcoef(np.log(first).ravel(), np.log(second).ravel())[0, 1]) < 0.1
    np.testing.assert_allclose(Stragglers(members=(a, b)).device_factors(4, EPOCHS), first * second)


def test_constant_at_its_place():
    factors = one("device", Constant(factor=3.0), (1,)).device_factors(3, EPOCHS)
    assert (factors == [1, 3, 1]).all()
    links = one("link", Constant(factor=2.0), ((0, 2),)).link_factors(3, [5])
    assert links[0, 0, 2] == 2 and links.sum() == 10
    assert (one("device", Constant(factor=3.0)).link_factors(3, [5]) == 1).all()


def test_lognormal_has_mean_one_and_its_sigma():
    factors = one("device", Lognormal(sigma=0.4)).device_factors(50, EPOCHS)
    assert factors.mean() == pytest.approx(1, abs=0.02)
    assert np.log(factors).std() == pytest.approx(0.4, rel=0.02)
    assert (one("device", Lognormal(sigma=0.0)).device_factors(4, EPOCHS) == 1).all()


def test_bursts_last_as_long_as_they_say():
    factors = one("device", Bursts(probability=0.05, epochs=4, factor=5.0)).device_factors(100, EPOCHS)
    assert set(np.unique(factors)) == {1.0, 5.0}
    assert (factors == 5).mean() == pytest.approx(1 - 0.95**4, abs=0.02)
    for slow in (factors == 5).T:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], slow, [0]])))
        lengths = (edges[1::2] - edges[::2])[:-1]  # the last may run out of the window
        assert (lengths >= 4).all()
    endless = one("device", Bursts(probability=0.02, epochs=10**9, factor=5.0)).device_factors(100, EPOCHS)
    assert (np.diff(endless, axis=0) >= 0).all() and set(np.unique(endless)) == {1.0, 5.0}, "it never ends"
    assert (one("device", Bursts(probability=0.0, epochs=3, factor=9.0)).device_factors(3, EPOCHS) == 1).all()
    assert (one("device", Bursts(probability=1.0, epochs=1, factor=9.0)).device_factors(3, EPOCHS) == 9).all()


def test_recorded_factors_repeat():
    factors = one("device", Recorded(history=(1.0, 2.0, 4.0)), (0,)).device_factors(2, [0, 1, 2, 3, 5])
    assert factors[:, 0].tolist() == [1, 2, 4, 1, 4] and (factors[:, 1] == 1).all()


def test_gone():
    assert (one("device", Constant(factor=3.0)).gone().device_factors(3, EPOCHS) == 1).all()


@pytest.mark.parametrize(
    ("text", "what", "where", "model"),
    [
        ("device:2=1.5", "device", (2,), Constant(factor=1.5)),
        ("device:0,3=2", "device", (0, 3), Constant(factor=2.0)),
        ("link:0-1=lognormal:0.3", "link", ((0, 1),), Lognormal(sigma=0.3)),
        ("link:0-1,1-0=4", "link", ((0, 1), (1, 0)), Constant(factor=4.0)),
        ("device=bursts:0.05:10:3", "device", None, Bursts(probability=0.05, epochs=10, factor=3.0)),
        ("device:1=recorded:some.txt", "device", (1,), Recorded(history=(1.0, 1.5, 2.0))),
    ],
)
def test_words(text, what, where, model):
    assert parse(text, 3, {"some.txt": "1 1.5\n2\n"}.get) == Straggler(what=what, where=where, model=model, stream=3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("device:2", "no straggler; give device:2=1.5"),
        ("disk=2", "no straggler"),
        ("device:a=2", "'a' is no rank"),
        ("device:0=0", "a factor of 0"),
        ("link:1=2", "no straggler"),
        ("device=bursts:1:2", "no straggler"),
        ("device=lognormal:x", "no straggler"),
        ("device=-1", "factor is -1"),
        ("device=recorded:/nowhere", "can't be read"),
        ("link:1-1=2", "from 1 to itself"),
    ],
)
def test_words_that_are_none(text, sentence):
    with pytest.raises(StragglerError, match=sentence):
        parse(text)


def test_pairing_narrows_the_interval():
    slow = one("link", Lognormal(sigma=0.8))
    cost = np.random.default_rng(0).random((6, 6)) + 1
    spans = [
        makespan(cost * scale * slow.link_factors(6, np.arange(60) + shift).swapaxes(1, 2), np.zeros(6), "rendezvous")
        for scale, shift in ((1.0, 0), (0.97, 0), (0.97, 1000))
    ]
    paired, apart = paired_difference(spans[0], spans[1]), paired_difference(spans[0], spans[2])
    assert paired.significant and paired.high < 0
    assert paired.high - paired.low < 0.2 * (apart.high - apart.low)


def test_the_interval_is_students():
    rng = np.random.default_rng(0)
    a, b = rng.random(12), rng.random(12)
    found = paired_difference(a, b, 0.9)
    want = stats.ttest_rel(b, a).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((want.low, want.high))
    assert found.pairs == 12 and found.mean == pytest.approx((b - a).mean())
    covers = 0
    for _ in range(400):
        found = paired_difference(np.zeros(8), rng.standard_normal(8) + 1)
        covers += found.low <= 1 <= found.high
    assert 0.92 < covers / 400 < 0.98


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(factor=-1), "factor is -1; it must be finite and at least 0"),
        (lambda: Lognormal(sigma=float("nan")), "sigma is nan"),
        (lambda: Bursts(probability=1.5, epochs=1, factor=2), "at most 1"),
        (lambda: Bursts(probability=0.5, epochs=0, factor=2), "epochs is 0"),
        (lambda: Recorded(history=()), "one epoch at least"),
        (lambda: Recorded(history=(1.0, float("inf"), 2.0)), "history is inf"),
        (lambda: Recorded(history=(1.0, float("nan"))), "history is nan"),
        (lambda: Straggler(what="disk", model=Constant(factor=1)), "not 'disk'"),
        (lambda: Straggler(what="device", model=Constant(factor=1), where=((0, 1),)), "devices are ranks"),
        (lambda: Straggler(what="link", model=Constant(factor=1), where=(0,)), "devices are ranks"),
        (
            lambda: one("device", Constant(factor=1), (4,)).device_factors(4, [0]),
            "device 4 is not there: ranks are 0 to 3",
        ),
        (lambda: Stragglers().without(0), "no straggler 0"),
        (lambda: paired_difference([1], [1]), "two or more"),
        (lambda: paired_difference([1, 2], [1, 2], 1.0), "between 0 and 1"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(StragglerError, match=message):
        make()
