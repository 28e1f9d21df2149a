"""The quantised exchange between ranks (threads here): codecs, layouts, widths, and the noise it adds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.graphs import random_graph
from tests.support.local_world import run_ranks
from toolkit import config as configs
from toolkit import native, rounding
from toolkit.comm import codec as codecs
from toolkit.comm.layout import Listing, make_layout, message_ids
from toolkit.comm.widths import Fixed, Uniform
from toolkit.errors import UserError
from toolkit.graph.part import build_parts
from toolkit.train.noise import measure
from toolkit.train.trainer import Trainer

RANKS = 3


def listing(rng, counts, rows, *, unique=True):
    total = sum(counts)
    numbers = rng.permutation(rows)[:total] if unique else np.sort(rng.integers(0, rows, total))
    return Listing(
        lent=True,
        rows=torch.from_numpy(numbers.astype(np.int64)),
        mask_rows=torch.from_numpy(numbers.astype(np.int64)),
        counts=tuple(counts),
        nodes=np.arange(total),
        ids=message_ids(np.arange(total), np.zeros(total, np.int64)),
    )


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 10**6))
def test_a_layout_has_a_place_for_every_byte(counts, entries, seed):
    """Messages neither overlap nor leave gaps; channels follow one another; metadata first, then by width."""
    rng = np.random.default_rng(seed)
    messages = listing(rng, counts, 100)
    bits = rng.choice(np.array([1, 2, 4, 8, 32], np.uint8), sum(counts))
    codec = codecs.Quantised()
    for grouped in (False, True):
        layout = make_layout(messages, bits, entries, codec.sizes, grouped=grouped)
        owner = np.full(sum(layout.bytes_by_peer), -1)
        peer_of_row = dict(zip(messages.rows.tolist(), np.repeat(np.arange(len(counts)), counts), strict=True))
        for i in range(len(layout)):
            meta, code = codec.sizes(entries, int(layout.bits[i]))
            for place, size in ((int(layout.meta_place[i]), meta), (int(layout.code_place[i]), code)):
                assert size == 0 or (owner[place : place + size] == -1).all()
                owner[place : place + size] = peer_of_row[int(layout.rows[i])]
        assert (owner >= 0).all()
        assert (np.diff(owner) >= 0).all()
        expected = [
            sum(rounding.message_bytes(entries, int(b)) for b in part)
            for part in np.split(bits, np.cumsum(counts)[:-1])
        ]
        assert list(layout.bytes_by_peer) == expected
        for peer in range(len(counts)):
            inside = [i for i in range(len(layout)) if peer_of_row[int(layout.rows[i])] == peer and layout.bits[i] < 32]
            codes = [int(layout.code_place[i]) for i in inside]
            assert not inside or max(int(layout.meta_place[i]) for i in inside) < min(codes)
            by_place = sorted(inside, key=lambda i: int(layout.code_place[i]))
            assert [int(layout.bits[i]) for i in by_place] == sorted(int(layout.bits[i]) for i in by_place)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "quantised"])
def test_kernels_and_plain_code_write_the_same_bytes(masked, name, monkeypatch):
    """Encoding, placing, and adding several messages to one row."""
    if native.library() is None:
        pytest.skip("the kernels are not built (make kernels)")
    rng = np.random.default_rng(0)
    x = torch.randn(50, 24, generator=torch.Generator().manual_seed(1))
    masks = torch.zeros(50, 24, dtype=torch.bool)
    for row in masks:
        row[torch.from_numpy(rng.permutation(24)[:9])] = True
    entries, given_masks = (9, masks) if masked else (24, None)
    codec = codecs.make(name, torch.float32)
    widths = [1, 2, 4, 8, 32] if name == "quantised" else [32]
    bits = rng.choice(np.array(widths, np.uint8), 40)

    def run():
        found = []
        for unique in (True, False):
            messages = listing(rng_copy(), (10, 0, 30), 50, unique=unique)
            out = make_layout(messages, bits, entries, codec.sizes)
            ranges = torch.zeros(40)
            payload = codec.encode(x, given_masks, out, 77, ranges).clone()
            into = make_layout(messages, bits, entries, codec.sizes, grouped=not unique)
            target = torch.full((50, 24), 0.5)
            codec.decode(payload, given_masks, into, target, add=not unique)
            found += [payload.numpy().tobytes(), target.numpy().tobytes(), ranges.numpy().tobytes()]
        return found

    def rng_copy():
        return np.random.default_rng(5)

    fast = run()
    monkeypatch.setattr(native, "available", lambda *tensors: False)
    assert run() == fast


def test_rows_wider_than_the_kernels_take_go_by_plain_code():
    x = torch.randn(3, native.WIDEST_ROW + 5)
    for name, bits in (("float32", 32), ("quantised", 4)):
        codec = codecs.make(name, torch.float32)
        messages = listing(np.random.default_rng(0), (3,), 3)
        layout = make_layout(messages, np.full(3, bits, np.uint8), x.shape[1], codec.sizes)
        out = torch.zeros_like(x)
        codec.decode(codec.encode(x, None, layout, 1, None), None, layout, out, add=False)
        assert torch.allclose(out, x, atol=1.0 if bits == 4 else 0)


@pytest.mark.parametrize("plain", [False, True])
def test_what_is_not_finite_passes_unquantised_and_is_refused_quantised(plain, monkeypatch):
    if plain:
        monkeypatch.setattr(native, "available", lambda *tensors: False)
    x = torch.ones(3, 8)
    x[1, 2] = torch.nan
    messages = listing(np.random.default_rng(0), (3,), 3)
    codec = codecs.Quantised()
    exact = make_layout(messages, np.full(3, 32, np.uint8), 8, codec.sizes)
    out = torch.zeros_like(x)
    codec.decode(codec.encode(x, None, exact, 1, None), None, exact, out, add=False)
    assert out.isnan().sum() == 1
    for bits in ([2, 2, 2], [2, 2, 32]):
        layout = make_layout(messages, np.array(bits, np.uint8), 8, codec.sizes)
        if layout.bits[messages.rows.tolist().index(1)] == 32:
            codec.encode(x, None, layout, 1, None)
        else:
            with pytest.raises(codecs.NotFiniteError, match="holds a NaN"):
                codec.encode(x, None, layout, 1, None)


def trainers(world, transport, method, *, kind="gcn", norm="layer"):
    graph = random_graph(60, 12, mean_degree=6.0)
    parts = np.random.default_rng(1).integers(0, RANKS, graph.num_nodes)
    config = configs.Config(
        model=configs.Model(kind=kind, layers=3, hidden=16, norm=norm, activation="elu"),
        method=configs.Method(**method),
    )
    return Trainer(list(build_parts(graph, parts, RANKS))[world.rank], config, world, transport)


def gradients_of(world, transport, method, **options):
    trainer = trainers(world, transport, method, **options)
    trainer.gradients(0)
    return [p.grad.clone() for p in trainer.parameters]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("plan", ["exact", "paper", "kept"])
def test_32_bits_are_vanilla(kind, plan):
    exact, quantised = (
        run_ranks(RANKS, lambda w, t, m=method: gradients_of(w, t, m | {"plan": plan}, kind=kind))
        for method in ({"codec": "float32"}, {"codec": "quantised", "bits": 32})
    )
    assert all(torch.equal(a, b) for a, b in zip(exact[0], quantised[0], strict=True))


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("plan", ["exact", "paper"])
def test_noise_falls_with_the_bits_and_averages_out(kind, plan):
    def noise(bits):
        method = {"codec": "quantised", "bits": bits, "plan": plan}
        return run_ranks(RANKS, lambda w, t: measure(trainers(w, t, method, kind=kind), 3, draws=24))[0][-1]

    two, four, eight = noise(2), noise(4), noise(8)
    assert two.dropout == eight.dropout > two.codec > four.codec > eight.codec > 0
    if kind == "gat":  # LeakyReLU's kink: what flips there does not shrink as fast, nor average out
        assert eight.codec < 0.01
    else:  # (15 / 3)^2 = 25 and (255 / 15)^2 = 289
        assert 15 < two.codec / four.codec < 40
        assert 150 < four.codec / eight.codec < 450
        assert max(four.bias, eight.bias) < 3, "24 where nothing averages out"
    assert noise(32).codec == 0


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_measuring_noise_changes_nothing(norm):
    """Neither weights nor running means of a normalisation, neither bytes nor seconds."""

    def work(world, transport):
        found = []
        for measured in (False, True):
            trainer = trainers(world, transport, {"codec": "quantised", "widths": "uniform", "period": 2}, norm=norm)
            for epoch in range(4):
                trainer.step(epoch)
                if measured:
                    before = dict(trainer.ledger.seconds)
                    measure(trainer, epoch + 1)
                    assert trainer.ledger.seconds == before
            counts = {key: sent.tolist() for key, sent in trainer.ledger.sent.items()}
            state = {name: tensor.clone() for name, tensor in trainer.network.state_dict().items()}
            found.append((state, counts, trainer.ledger.weight_gradient_bytes))
        return found

    plain, measured = run_ranks(RANKS, work)[0]
    assert all(torch.equal(tensor, measured[0][name]) for name, tensor in plain[0].items())
    assert plain[1:] == measured[1:]


def test_layer_0_and_evaluation_are_exact_unless_asked():
    def work(world, transport, method):
        trainer = trainers(world, transport, method)
        trainer.step(0)
        trainer.evaluate()
        return {
            key: set(ways["forward"].out.bits.tolist()) - {32} != set()
            for key, (_, ways) in trainer.engine.ways.items()
        }

    quantised = {"codec": "quantised", "bits": 2, "plan": "paper"}
    usual = run_ranks(RANKS, lambda w, t: work(w, t, quantised))[0]
    assert usual == {(phase, layer): phase == "train" and layer > 0 for phase, layer in usual} and len(usual) == 6
    asked = run_ranks(RANKS, lambda w, t: work(w, t, quantised | {"quantise_all": True}))[0]
    assert all(asked.values())
    with pytest.raises(UserError, match="goes with codec quantised and plan paper"):
        configs.Method(codec="quantised", quantise_all=True)


def test_widths_are_drawn_evenly_and_alike_at_both_ends():
    rng = np.random.default_rng(0)
    many = listing(rng, (3000,), 3000)
    uniform = Uniform(seed=1, epochs=10)
    bits = uniform.bits(many, 1, "forward", 0)
    assert np.bincount(bits)[[2, 4, 8]] == pytest.approx([1000] * 3, abs=150)
    assert np.array_equal(bits, uniform.bits(many, 1, "forward", 9))
    for other in (
        uniform.bits(many, 1, "forward", 10),
        uniform.bits(many, 1, "backward", 0),
        uniform.bits(many, 2, "forward", 0),
    ):
        assert 0.25 < (bits == other).mean() < 0.42
    assert set(Fixed(4).bits(many, 1, "forward", 0)) == {4}


def test_a_message_has_one_id_at_both_ends():
    graph = random_graph(60, 12, mean_degree=6.0)
    parts = list(build_parts(graph, np.random.default_rng(1).integers(0, RANKS, graph.num_nodes), RANKS))
    lent = {(int(n), int(r)): i for p in parts for n, r, i in _lent(p)}
    borrowed = {(int(n), p.rank): i for p in parts for n, i in _borrowed(p)}
    assert lent == borrowed and len(set(lent.values())) == len(lent) > 50


def _lent(part):
    borrowers = np.repeat(np.arange(RANKS), part.send_counts)
    nodes = part.nodes[part.send_rows]
    return zip(nodes, borrowers, message_ids(nodes, borrowers).tolist(), strict=True)


def _borrowed(part):
    ids = message_ids(part.halo_nodes, np.full(part.num_halo, part.rank))
    return zip(part.halo_nodes, ids.tolist(), strict=True)
