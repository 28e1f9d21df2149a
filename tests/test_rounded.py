"""The variance that rounding adds to rows, beside its bound: on made rows, in a real exchange, on a real graph."""

import argparse
import dataclasses

import numpy as np
import pytest
import torch

from simulator.epoch import exchange_variance_bound
from simulator.workload import Exchange
from tests.support.local_world import run_ranks
from tests.test_quantised import RANKS, trainers
from toolkit import config as configs
from toolkit.comm.codec import Quantised
from toolkit.comm.halo import Crossing
from toolkit.comm.layout import Listing, make_layout, message_ids
from toolkit.commands.noise import describe
from toolkit.graph.coefficients import gcn_coefficients
from toolkit.graph.part import build_parts
from toolkit.graph.partition import random_parts
from toolkit.graph.registry import load
from toolkit.plan import travelling
from toolkit.train.noise import measure
from toolkit.train.rounded import ErrorSampler, RowNoise
from toolkit.train.trainer import Trainer

REAL_RANKS = 2


def sampled(wire, bits, draws=20):
    """Mean squared errors of these rows, and the bound of their sum."""
    count = len(wire)
    ids = message_ids(np.arange(count), np.zeros(count, np.int64))
    places = torch.arange(count)
    listing = Listing(lent=True, rows=places, mask_rows=places, counts=(0, count), nodes=np.arange(count), ids=ids)
    out = make_layout(listing, np.full(count, bits, np.uint8), wire.shape[1], Quantised().sizes)
    trainer = argparse.Namespace(seed=1, engine=argparse.Namespace(coded=lambda kind, layer: layer == 1))
    sampler = ErrorSampler(trainer, Quantised(), 0, draws)
    for layer in (0, 1):
        sampler(argparse.Namespace(layer=layer), "forward", out, wire, None)
    assert set(sampler.squared) == {(1, "forward")}, "rows that go exactly are left alone"
    ranges = (wire.amax(1) - wire.amin(1)).double().square().numpy()
    rows, none = np.array([[0, count], [0, 0]]), np.zeros(2)
    exchange = Exchange(
        layer=1,
        direction="forward",
        row_entries=wire.shape[1],
        rows=rows,
        bits=np.full(count, bits, np.uint8),
        range_squared=ranges,
        alpha_squared=np.ones(count),
        encode_s=none,
        flight_s=none,
        central_s=none,
        decode_s=none,
        marginal_s=none,
    )
    return sampler.squared[1, "forward"], exchange_variance_bound(exchange)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("shape", "ratio"), [("even", 1.0), ("sparse", 0.5), ("halfway", 1.5), ("constant", None)])
def test_the_bound_is_that_of_entries_that_lie_anywhere(bits, shape, ratio):
    generator, steps = torch.Generator().manual_seed(bits), 2**bits - 1
    wire = torch.rand(200, 256, generator=generator)
    if shape == "sparse":
        wire[:, ::2] = 0.0
    elif shape == "halfway":  # codes are whole numbers, exact in bfloat16
        wire = torch.floor(wire * steps) + 0.5
        wire[:, 0], wire[:, 1] = 0.0, float(steps)
    elif shape == "constant":
        wire[:] = 0.7
    errors, bound = sampled(wire, bits)
    if ratio is None:
        assert not errors.any() and bound == 0
        return
    # two entries of 256 are the ends; at 8 bits the step is up to 1 / 128 longer, being a bfloat16
    assert errors.sum() / bound == pytest.approx(ratio, rel=0.025)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_what_is_measured_is_what_arrives_and_is_aggregated(bits, monkeypatch):
    """Layer 1's rows come from layer 0, which is held: the same in every draw. So their errors can be had otherwise."""
    caught, arrive, draws, epoch = {}, Crossing.forward_arrive, 24, 3

    def catching(crossing):
        rows = arrive(crossing)
        if crossing._step.layer == 1:
            caught[crossing._rank] = rows.double().clone()
        return rows

    monkeypatch.setattr(Crossing, "forward_arrive", catching)

    def work(world, transport):
        trainer = trainers(world, transport, {"codec": "quantised", "bits": bits})
        engine, part, step = trainer.engine, trainer.part, trainer.engine.plan.train[1]
        with engine.exactly():
            trainer.gradients(epoch)
        exact = caught[world.rank]
        matters = part.hops <= step.max_reach
        matrix = gcn_coefficients(part)[:, part.num_inner :][matters]
        arriving = travelling(part.halo_reach, step)
        by_row, aggregated = 0.0, 0.0
        for draw in range(1, draws + 1):
            engine.draw = draw
            trainer.gradients(epoch)
            error = (caught[world.rank] - exact).numpy()
            assert not error[~arriving].any()
            by_row += float(np.asarray(matrix.multiply(matrix).sum(0)).ravel() @ (error**2).sum(1))
            aggregated += float(((matrix @ error) ** 2).sum())
        engine.draw = 0
        return measure(trainer, epoch, draws)[1].forward, by_row / draws, aggregated / draws

    found = run_ranks(RANKS, work)
    told = found[0][0]
    assert all(one == told for one, _, _ in found), "every rank has the same"
    assert told.measured == pytest.approx(sum(by_row for _, by_row, _ in found), rel=1e-5)
    assert told.measured == pytest.approx(sum(whole for *_, whole in found), rel=0.1), "errors do not add up"


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_on_a_real_graph_rounding_stays_within_its_bound(kind):
    """digits, two ranks, parts at random: thousands of messages, so four draws are enough."""
    data = configs.Data(name="digits")
    graph = load(configs.Config(data=data))
    parts = list(build_parts(graph, random_parts(graph.num_nodes, REAL_RANKS, 0), REAL_RANKS))

    def noise(bits):
        def work(world, transport):
            config = configs.Config(
                data=data,
                model=configs.Model(kind=kind, layers=3, hidden=32, norm="layer"),
                method=configs.Method(codec="quantised", bits=bits),
            )
            trainer = Trainer(parts[world.rank], config, world, transport)
            for epoch in range(3):
                trainer.step(epoch)
            return measure(trainer, 3)

        return run_ranks(REAL_RANKS, work)[0]

    bounds = []
    for bits, metadata in ((2, 1.0), (4, 1.01), (8, 1.05)):
        *layers, both = noise(bits)
        assert layers[0].forward is None and layers[0].backward is None, "layer 0 is held"
        for direction in ("forward", "backward"):
            of_all = getattr(both, direction)
            assert of_all.messages == sum(getattr(one, direction).messages for one in layers[1:])
            assert of_all.measured <= of_all.bound * metadata * 1.05
            for one in layers[1:]:
                rows = getattr(one, direction)
                assert 0.2 * rows.bound < rows.measured < 1.5 * rows.bound * metadata
        bounds.append(both.forward.bound)
    # the same weights, up to what rounding did to three steps; (15 / 3)^2 and (255 / 15)^2
    assert bounds[0] / bounds[1] == pytest.approx(25, rel=0.2)
    assert bounds[1] / bounds[2] == pytest.approx(289, rel=0.2)


def test_widths_in_force_are_what_is_measured():
    """Drawn widths lie between 8 and 2 bits; 32 bits and other codecs round nothing."""

    def noise(method):
        return run_ranks(RANKS, lambda w, t: measure(trainers(w, t, method), 3, draws=8))[0][-1]

    two, eight = (noise({"codec": "quantised", "bits": bits}).forward for bits in (2, 8))
    drawn = noise({"codec": "quantised", "widths": "uniform", "period": 2}).forward
    assert eight.bound * 10 < drawn.bound < two.bound * 0.7 and eight.measured < drawn.measured < two.measured
    assert drawn.messages == two.messages
    whole = noise({"codec": "quantised", "bits": 32})
    assert whole.forward.measured == whole.forward.bound == whole.backward.measured == 0
    assert noise({"codec": "bfloat16"}).forward is None


def test_the_table_has_both_and_says_how_tight_it_is():
    method = {"codec": "quantised", "bits": 4}
    found = run_ranks(RANKS, lambda w, t: measure(trainers(w, t, method), 3, draws=2))[0]
    config, args = configs.Config(method=configs.Method(**method)), argparse.Namespace(after=3, draws=2)
    shown = describe(found, config, args)
    rows = [line.split() for line in shown.splitlines() if " forward " in line or " backward " in line]
    assert [row[:2] for row in rows] == [
        [layer, way] for layer in ("1", "2", "all") for way in ("forward", "backward")
    ]  # fmt: skip
    for row, one in zip(rows, [noise for layer in found[1:] for noise in (layer.forward, layer.backward)], strict=True):
        assert float(row[-1]) == pytest.approx(one.measured / one.bound, abs=6e-4)
    silent = [dataclasses.replace(one, forward=None, backward=None) for one in found]
    assert "direction" not in describe(silent, config, args)
    nothing = [dataclasses.replace(one, backward=RowNoise(messages=0, measured=0.0, bound=0.0)) for one in silent]
    assert describe(nothing, config, args).splitlines()[-1].split()[-1] == "-"
