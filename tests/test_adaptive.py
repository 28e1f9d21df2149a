"""Adaptive widths in training (ranks as threads): trace, solve beside training, agree, go on."""

import copy
import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from simulator import machine
from simulator.cost import PairCosts
from simulator.exchanges import assign_exchange, assign_together
from simulator.policy import ProblemError
from simulator.workload import Exchange
from tests.support.graphs import random_graph
from tests.support.local_world import run_ranks
from toolkit import config as configs
from toolkit.comm.ledger import Ledger
from toolkit.errors import UserError
from toolkit.graph.part import build_parts
from toolkit.nn.attention import Edges, attend, squared_weights
from toolkit.plan import travelling
from toolkit.train import assigner, prices
from toolkit.train.attended import AttentionRecorder
from toolkit.train.noise import measure
from toolkit.train.trainer import Trainer, parameter_copies

RANKS = 3


@pytest.fixture
def wires(tmp_path):
    """A machine.toml of three hosts, one pair slower than the rest."""
    theta = np.full((RANKS, RANKS), 1e-7)
    theta[0, 1] = 5e-7
    costs = PairCosts(theta_s_per_byte=theta, gamma_s=np.full((RANKS, RANKS), 1e-4))
    hosts = tuple(machine.Host(name=f"h{i}") for i in range(RANKS))
    machine.write(machine.Machine(name="three", hosts=hosts, fitted=costs), tmp_path / "machine.toml")
    return str(tmp_path / "machine.toml")


def trainer_of(world, transport, method, kind="gcn"):
    graph = random_graph(90, 12, mean_degree=6.0)
    parts = np.random.default_rng(1).integers(0, RANKS, graph.num_nodes)
    config = configs.Config(
        model=configs.Model(kind=kind, layers=3, hidden=16, norm="layer"), method=configs.Method(**method)
    )
    return Trainer(list(build_parts(graph, parts, RANKS))[world.rank], config, world, transport)


def adaptive(wires, **more):
    """A period of 3 epochs, switching at its end, AdaQP's own policy."""
    given = {"period": 3, "group_size": 4, "machine": wires, "lead": 0, "policy": "adaptive"}
    return {"codec": "quantised", "widths": "adaptive"} | given | more


def train(world, transport, method, epochs=8, kind="gcn", between=lambda trainer, epoch: None):
    """Weights; each epoch's widths of layer 1; each epoch's lines of the record, by kind."""
    trainer = trainer_of(world, transport, method, kind)
    widths, told = [], []
    for epoch in range(epochs):
        trainer.step(epoch)
        way = trainer.engine.ways["train", 1][1]
        widths.append({d: w.out.bits.tolist() for d, w in way.items()})
        between(trainer, epoch)
        if trainer.adaptive is not None:
            told.append(dict(trainer.adaptive.take_lines()))
    return parameter_copies(trainer.parameters), widths, told


def same(one, two):
    """Equal weights and widths."""
    return one[1] == two[1] and all(torch.equal(a, b) for a, b in zip(one[0], two[0], strict=True))


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_widths_change_at_the_end_of_a_period(wires, kind):
    results = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, lam=0.5), kind=kind))
    for _, widths, _ in results:
        assert all(set(bits) <= {8} for way in widths[:3] for bits in way.values()), "the first period: 8 bits"
        assert widths[3] == widths[4] == widths[5] != widths[2]
    lines = results[0][2]
    period_ends = {"exchanges", "assignment"}
    assert [set(one) for one in lines] == [set(), set(), period_ends, set(), set(), period_ends, set(), set()]
    assert not any(any(told) for _, _, told in results[1:]), "rank 0 tells"
    counted = {"2": 0, "4": 0, "8": 0}
    for _, widths, _ in results:
        for width in widths[3]["forward"]:
            counted[str(width)] += 1
    told = lines[2]["assignment"]
    recorded = next(w for w in told["widths"] if (w["layer"], w["direction"]) == (1, "forward"))["messages"]
    assert recorded == {width: count for width, count in counted.items() if count}
    assert len(told["widths"]) == 4 and told["gap"] < 0.2
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))


@pytest.mark.parametrize("kind", ["gcn", "gat"])
@pytest.mark.parametrize("quantise_all", [False, True])
def test_under_the_papers_plan_layer_0_has_widths_only_where_it_is_quantised(wires, kind, quantise_all):
    method = adaptive(wires, plan="paper", quantise_all=quantise_all)
    told = run_ranks(RANKS, lambda w, t: train(w, t, method, kind=kind))[0][2][5]["assignment"]
    assert {one["layer"] for one in told["widths"]} == ({0, 1, 2} if quantise_all else {1, 2})


def test_lambda_1_is_8_bits_and_lambda_0_few(wires):
    eight = run_ranks(RANKS, lambda w, t: train(w, t, {"codec": "quantised", "bits": 8}))[0]
    most = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, lam=1.0)))[0]
    assert all(torch.equal(a, b) for a, b in zip(eight[0], most[0], strict=True)), "the same rows at the same widths"
    least = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, lam=0.0)))[0]
    assert np.mean(least[1][-1]["forward"]) < 5


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_only_training_passes_are_traced(wires, kind):
    """Evaluating, and measuring noise, between epochs leaves the assignment as it is."""

    def look(trainer, epoch):
        trainer.evaluate()
        measure(trainer, epoch + 1, draws=2)

    method = adaptive(wires, lead=1)
    plain = run_ranks(RANKS, lambda w, t: train(w, t, method, kind=kind))[0]
    looked = run_ranks(RANKS, lambda w, t: train(w, t, method, kind=kind, between=look))[0]
    assert same(plain, looked)


@pytest.mark.parametrize("lead", [0, 1, 2, 3, 50])
def test_the_switch_comes_lead_epochs_after_the_trace(wires, lead):
    """At most a period later. Traces end epochs 3, 6, ..; here and below epochs count from 1."""
    widths, told = run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, lead=lead), epochs=10))[0][1:]
    switched = [epoch for epoch, lines in enumerate(told, 1) if "assignment" in lines]
    assert switched == [epoch + min(lead, 3) for epoch in (3, 6, 9) if epoch + min(lead, 3) <= 10]
    first = switched[0]
    assert all(set(bits) <= {8} for way in widths[:first] for bits in way.values())
    assert widths[first] != widths[first - 1], "from the epoch after the switch on"


def test_training_goes_on_while_rank_0_solves_and_the_bits_are_the_same(wires, monkeypatch):
    """The solver waits for an epoch that comes after the trace: were training to wait for the solver, both would."""
    method = adaptive(wires, lead=2)
    plain = run_ranks(RANKS, lambda w, t: train(w, t, method, epochs=7))[0]
    trained_on, solve = threading.Event(), assigner.solve

    def slow(request, method):
        assert trained_on.wait(20), "no epoch was trained while the solver was at work"
        return solve(request, method)

    def note(trainer, epoch):
        if epoch == 3:
            trained_on.set()

    monkeypatch.setattr("toolkit.train.adaptive.solve", slow)
    assert same(plain, run_ranks(RANKS, lambda w, t: train(w, t, method, epochs=7, between=note))[0])


def test_training_waits_for_a_solver_that_is_late_and_says_so(wires, monkeypatch):
    method, solve = adaptive(wires, lead=1, period=4), assigner.solve
    plain = run_ranks(RANKS, lambda w, t: train(w, t, method))[0]

    def late(request, method):
        threading.Event().wait(0.5)
        return solve(request, method)

    monkeypatch.setattr("toolkit.train.adaptive.solve", late)
    waited = run_ranks(RANKS, lambda w, t: train(w, t, method))[0]
    assert same(plain, waited)
    line = waited[2][4]["assignment"]
    assert line["assign_s"] > 0.1 and line["solve_s"] > 0.5


@pytest.mark.parametrize(("lead", "kind"), [(0, "gcn"), (2, "gcn"), (3, "gcn"), (3, "gat")])
def test_a_state_goes_on_where_it_was(wires, lead, kind):
    method = adaptive(wires, lead=lead)

    def work(world, transport):
        whole = trainer_of(world, transport, method, kind)
        for epoch in range(5):
            whole.step(epoch)
        plain, tensors = world.broadcast(whole.adaptive.to_state())
        again = trainer_of(world, transport, method, kind)
        again.network.load_state_dict(whole.network.state_dict())
        again.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
        again.adaptive.take(json.loads(json.dumps(plain)), tensors)
        for trainer in (whole, again):
            for epoch in range(5, 8):
                trainer.step(epoch)
        pending = "pending/1/forward/range_squared" in tensors
        return pending, parameter_copies(whole.parameters), parameter_copies(again.parameters)

    for pending, one, two in run_ranks(RANKS, work):
        assert pending == (lead == 3), "traced after epoch 3, and this is after epoch 5"
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def assign_each(exchanges, costs, policy, *, hidden_s, **choices):
    pairs = zip(exchanges, hidden_s, strict=True)
    return [assign_exchange(exchange, costs, policy, hidden_s=free, **choices) for exchange, free in pairs]


@pytest.mark.parametrize("more", [{}, {"policy": "total"}, {"policy": "posted", "budget": "joint"}])
def test_what_is_agreed_is_the_simulators_own_answer(wires, more):
    """The widths in force are those of the simulator for what was traced, objective and bound included."""
    seen = []

    def look(trainer, epoch):
        if trainer.adaptive.pending is not None and trainer.adaptive.pending.request is not None:
            seen.append(trainer.adaptive.pending.request)

    method = adaptive(wires, lead=1, lam=0.3, **more)
    widths, told = run_ranks(RANKS, lambda w, t: train(w, t, method, epochs=5, between=look))[0][1:]
    request = seen[0]
    assert request.hidden_s == (0.0,) * 4, "of a machine whose memory rate is not known"
    solved = assigner.solve(request, configs.Method(**method))
    for one in told[3]["assignment"]["widths"]:
        agreed = solved.agreed[one["layer"], one["direction"]]
        assert assigner.histogram(agreed.bits) == one["messages"]
        assert one["lower_bound"] <= one["objective"]
    chosen = configs.Method(**method)
    together = assign_together if chosen.budget == "joint" else assign_each
    answers = together(
        request.exchanges, request.costs, told[3]["assignment"]["policy"], lam=0.3, group_size=chosen.group_size,
        hidden_s=request.hidden_s,
    )  # fmt: skip
    for exchange, answer in zip(request.exchanges, answers, strict=True):
        assert np.array_equal(solved.agreed[exchange.layer, exchange.direction].bits, answer.bits)
    sent = [bits for peer in range(RANKS) for bits in solved.agreed[1, "forward"].channel(0, peer).tolist()]
    assert sent == widths[4]["forward"]


def test_messages_that_hide_behind_products_are_exact(wires, tmp_path):
    """At a byte a second products last longer than any message: 8 bits cost nothing, whatever lambda says."""
    found = machine.read(Path(wires))
    hosts = tuple(dataclasses.replace(host, memory_byte_s=1.0) for host in found.hosts)
    machine.write(dataclasses.replace(found, hosts=hosts), tmp_path / "slow.toml")
    method = adaptive(str(tmp_path / "slow.toml"), lam=0.0)
    for policy in ("adaptive", "posted"):
        hidden = run_ranks(RANKS, lambda w, t, p=policy: train(w, t, method | {"policy": p}, epochs=4))[0]
        assert set(hidden[1][3]["forward"]) == {8}
    for off in ({"hidden": False}, {"overlap": False}):
        shown = run_ranks(RANKS, lambda w, t, off=off: train(w, t, method | off, epochs=4))[0]
        assert np.mean(shown[1][3]["forward"]) < 5


def test_random_widths_spend_the_same_seconds_blindly(wires):
    chosen, drawn, again = (
        run_ranks(RANKS, lambda w, t, p=policy: train(w, t, adaptive(wires, policy=p), epochs=4))[0]
        for policy in ("posted", "random", "random")
    )
    best, blind = chosen[2][2]["assignment"], drawn[2][2]["assignment"]
    assert blind["variance"] > best["variance"]
    assert blind["rounds_s"] <= best["rounds_s"] * (1 + 1e-9)
    assert same(drawn, again)


@pytest.mark.parametrize(("ring", "policy"), [("posted", "posted"), ("barrier", "adaptive")])
def test_auto_says_what_it_took_and_why(wires, ring, policy):
    method = adaptive(wires, policy="auto", ring=ring)
    line = run_ranks(RANKS, lambda w, t: train(w, t, method, epochs=4))[0][2][2]["assignment"]
    assert line["policy"] == policy and f"simulated {ring} ring at equal variance" in line["reason"]
    assert line["policies_s"][policy] == min(line["policies_s"].values())
    itself = run_ranks(RANKS, lambda w, t: train(w, t, method | {"policy": policy}, epochs=4))[0][2][2]["assignment"]
    assert itself["widths"] == line["widths"]


def test_attention_stands_for_the_coefficients(wires):
    """With attention vectors of zero every in-neighbour weighs 1 / (in-degree + 1): known coefficients."""

    def work(world, transport):
        trainer = trainer_of(world, transport, adaptive(wires), "gat")
        for layer in trainer.network.layers:
            layer.attend_source.data.zero_()
            layer.attend_target.data.zero_()
        recorder = AttentionRecorder(trainer.part)
        with trainer.aside(), recorder.listening(trainer.network):
            trainer.gradients(0)
        return trainer.part, trainer.engine.plan.train, recorder.squares

    for part, steps, squares in run_ranks(RANKS, work):
        targets = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
        for step in steps[1:]:
            wanted = np.zeros(part.num_halo)
            for target, source in zip(targets, part.indices, strict=True):
                matters = step.max_reach is None or part.hops[target] <= step.max_reach
                if source >= part.num_inner and matters:
                    wanted[source - part.num_inner] += 1 / (part.in_degrees[target] + 1) ** 2
            assert squares[step.layer] == pytest.approx(wanted[travelling(part.halo_reach, step)], rel=1e-5)


def test_squared_attention_is_that_of_a_dense_softmax():
    """Random scores, two heads: softmax over local and halo edges of a target together, squared, mean over heads."""
    generator = torch.Generator().manual_seed(1)
    near_edges = Edges.of(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2]), 3, 3)
    far_edges = Edges.of(np.array([0, 1, 1]), np.array([1, 0, 1]), 3, 2)
    near_scores, far_scores = (torch.randn(count, 2, generator=generator) * 3 for count in (4, 3))
    ledger = Ledger(ranks=1)
    near = attend(near_scores, torch.randn(3, 2, 4), near_edges, None, ledger, "central", 0)
    far = attend(far_scores, torch.randn(2, 2, 4), far_edges, near.shift, ledger, "marginal", 0)
    found = squared_weights(far_scores, far_edges, near, far)
    exps = [scores.double().exp() for scores in (near_scores, far_scores)]
    total = torch.zeros(3, 2, dtype=torch.float64)
    for edges, values in ((near_edges, exps[0]), (far_edges, exps[1])):
        total.index_add_(0, edges.targets, values)
    wanted = (exps[1] / total[far_edges.targets]).square().mean(1)
    assert found.numpy() == pytest.approx(wanted.numpy(), rel=1e-5)


def test_prices_follow_what_is_seen():
    n = 3
    costs = PairCosts(theta_s_per_byte=np.full((n, n), 1e-7), gamma_s=np.full((n, n), 1e-4))
    found = machine.Machine(name="m", hosts=(machine.Host(name="h", devices=n),), fitted=costs)
    rows = 20 * (1 - np.eye(n, dtype=np.int64))
    some, none = np.ones(120), np.zeros(n)
    exchange = Exchange(
        layer=1, direction="forward", row_entries=16, rows=rows, bits=np.full(120, 4, np.uint8), range_squared=some,
        alpha_squared=some, encode_s=none, flight_s=none, central_s=none, decode_s=none, marginal_s=none,
    )  # fmt: skip
    slower = dataclasses.replace(exchange, flight_s=1.5 * prices.predicted_s(exchange, costs, "posted"))
    assert prices.factor_of([slower], costs, "posted") == pytest.approx(1.5)
    assert prices.factor_of([exchange], costs, "posted") is None
    first = prices.Prices(machine=found, seconds=0.1).observed(1.5)
    assert first.drift() == 0.0 and first.costs().gamma_s[0, 1] == pytest.approx(1.5e-4)
    later = first.observed(2.1)
    assert later.drift() == pytest.approx(0.4)
    assert first.observed(None).factor == 1.5
    described = prices.Prices(machine=found, seconds=0.0).observed(1.5)
    assert described.costs() is costs, "a described machine stays as it is"
    again = prices.Prices.of_plain(json.loads(json.dumps(later.to_plain())))
    assert again.drift() == later.drift()
    assert np.array_equal(again.costs().theta_s_per_byte, later.costs().theta_s_per_byte)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"machine": "emulated-4"}, "has 4 devices, and this job 3 ranks"),
        ({"machine": "nowhere"}, "there is no machine 'nowhere'"),
        ({"machine": ""}, "name a machine"),
        ({"policy": "best"}, "there is no policy 'best'"),
        ({"policy": "random", "budget": "joint"}, "method.policy random: one joint budget goes with adaptive"),
    ],
)
def test_what_can_not_be_assigned_is_refused_before_training(wires, change, sentence):
    with pytest.raises(UserError, match=sentence):
        run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires) | change, epochs=1))


@pytest.mark.parametrize("lead", [0, 2])
def test_what_the_solvers_thread_refuses_ends_every_rank(wires, monkeypatch, lead):
    def fails(*_, **__):
        raise ProblemError("no width will do")

    monkeypatch.setattr(assigner, "assign_workload", fails)
    told = []

    def work(world, transport):
        try:
            train(world, transport, adaptive(wires, lead=lead))
        except UserError as error:
            told.append(str(error))

    run_ranks(RANKS, work)
    assert told == ["method.policy adaptive: no width will do"] * RANKS


def test_a_checkpoint_of_an_older_bitring_is_refused(wires):
    old = {"number": 1, "theta_s_per_byte": [[0.0] * RANKS] * RANKS, "widths": []}
    with pytest.raises(UserError, match="adaptive widths of an older bitring"):
        run_ranks(RANKS, lambda w, t: trainer_of(w, t, adaptive(wires)).adaptive.take(old, {}))


def test_a_signal_ends_the_wait_for_a_late_solver_and_nothing_is_lost(wires, monkeypatch):
    """The epoch ends without the switch; whoever goes on from there switches first: the same bits."""
    method, solve, let_go = adaptive(wires, lead=1, period=4), assigner.solve, threading.Event()
    plain = run_ranks(RANKS, lambda w, t: train(w, t, method, epochs=7))[0]

    def stuck(request, method):
        assert let_go.wait(20)
        return solve(request, method)

    def work(world, transport):
        trainer = trainer_of(world, transport, method)
        trainer.adaptive.stop_asked = lambda: True
        for epoch in range(5):
            trainer.step(epoch)
        assert trainer.adaptive.pending is not None and trainer.adaptive.number == 0
        let_go.set()
        state, tensors = world.broadcast(trainer.adaptive.to_state())
        again = trainer_of(world, transport, method)
        again.network.load_state_dict(trainer.network.state_dict())
        again.optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))
        again.adaptive.take(json.loads(json.dumps(state)), tensors)
        for epoch in range(5, 7):
            again.step(epoch)
        return parameter_copies(again.parameters), again.adaptive.number

    monkeypatch.setattr("toolkit.train.adaptive.solve", stuck)
    weights, number = run_ranks(RANKS, work)[0]
    assert number == 1
    assert all(torch.equal(a, b) for a, b in zip(plain[0], weights, strict=True))


@pytest.mark.parametrize("damage", ["number", "spent", "rows", "short"])
def test_a_damaged_state_is_refused(wires, damage):
    def work(world, transport):
        trainer = trainer_of(world, transport, adaptive(wires))
        for epoch in range(3):
            trainer.step(epoch)
        plain, tensors = (dict(part) for part in world.broadcast(trainer.adaptive.to_state()))
        if damage in plain:
            del plain[damage]
        elif damage == "rows":
            del tensors["widths/1/forward/rows"]
        else:
            tensors["widths/1/forward/bits"] = tensors["widths/1/forward/bits"][1:]
        with pytest.raises(UserError, match="adaptive widths are damaged"):
            trainer_of(world, transport, adaptive(wires)).adaptive.take(plain, tensors)

    run_ranks(RANKS, work)


def test_training_that_ends_before_a_choice_says_so(wires, caplog):
    caplog.set_level("INFO", logger="bitring")
    run_ranks(RANKS, lambda w, t: train(w, t, adaptive(wires, period=150, lead=60), epochs=1))
    assert "training ends before the first choice of widths, after epoch 210" in caplog.text


def test_widths_go_with_the_codec():
    with pytest.raises(UserError, match="widths go with codec quantised"):
        configs.Method(widths="adaptive")
    for unused in ({"codec": "float32"}, {"codec": "quantised", "widths": "adaptive"}):
        with pytest.raises(UserError, match=r"method.bits is 2, which codec \w+ with widths \w+ does not use"):
            configs.Method(bits=2, **unused)
    with pytest.raises(UserError, match=r"method.lam is 1.5"):
        configs.Method(lam=1.5)
