"""Adaptive widths over a network that is measured: costs kept, held against the run, measured anew where they drift."""

import json
import time

import numpy as np
import pytest

from simulator import machine
from tests.mpi.test_resume import configuration, machine_of, start
from toolkit.comm import position
from toolkit.comm import ring as rings
from toolkit.errors import UserError
from toolkit.train import prices

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
METHOD = {"name": "adaqp", "codec": "quantised", "widths": "adaptive", "period": 4, "lead": 1, "group_size": 10}


def lines(folder, kind):
    told = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in told if line["kind"] == kind]


def test_costs_are_measured_once_kept_and_held_against_the_run(world, shared_tmp):
    config = configuration(shared_tmp, method=METHOD | {"drift": 0.0}, train={"noise_every": 5})
    start(world, config, shared_tmp / "run", seeds=2)
    world.comm.Barrier()
    run = shared_tmp / "run"
    if world.size == 1:
        assert not lines(run, "costs") and not lines(run, "assignment")
        return
    (costs,) = lines(run, "costs")
    assert costs["seed"] == 0 and costs["seconds"] > 0, "the second seed has those of the first"
    found = machine.read(run / "machine.toml").pair_costs()
    apart = ~np.eye(world.size, dtype=bool)
    assert found.ranks == world.size and (found.theta_s_per_byte[apart] + found.gamma_s[apart] > 0).all()
    told = lines(run, "exchanges")
    assert [(line["seed"], line["epoch"]) for line in told] == [(0, 3), (0, 7), (1, 3), (1, 7)]
    for line in told:
        assert line["factor"] > 0 and not line["measured_anew"]
        for exchange in line["exchanges"]:
            assert exchange["predicted_s"] > 0 and exchange["measured_s"] > 0
    assert told[1]["exchanges"][0]["num_bytes"] <= told[0]["exchanges"][0]["num_bytes"], "8 bits come first"
    assigned = lines(run, "assignment")
    assert [(line["seed"], line["epoch"], line["number"]) for line in assigned] == [
        (0, 4, 1), (0, 8, 2), (1, 4, 1), (1, 8, 2)
    ]  # fmt: skip
    assert all(line["lower_bound"] <= line["objective"] and line["policy"] for line in assigned)
    noise = lines(run, "noise")
    assert [(line["seed"], line["epoch"]) for line in noise] == [(0, 4), (0, 9), (1, 4), (1, 9)]
    for line in noise:
        first, *rounded, whole = line["layers"]
        assert first["forward"] is None and whole["layer"] == -1, "layer 0 is exchanged once, exactly"
        for way in ("forward", "backward"):
            assert all(0 < one[way]["measured"] < 2 * one[way]["bound"] for one in rounded)
            assert whole[way]["messages"] == sum(one[way]["messages"] for one in rounded) > 0
    (last,) = lines(run, "summary")
    assert last["assignments"] == 4 and 0 < last["assignment_share"] < 1 and last["calibrate_s"] > 0


@pytest.mark.parametrize(("ring", "name"), [("posted", "adaqp-q"), ("rendezvous", "adaqp"), ("barrier", "adaqp")])
def test_rounds_are_told_and_make_up_their_exchange(world, shared_tmp, monkeypatch, ring, name):
    """The slowest rank's, round by round; a rank that is late in the last is seen there."""
    if world.size == 1:
        pytest.skip("one rank has no rounds")
    late_s, last = 0.05, world.size - 1
    wait_all, seen = rings.wait_all, []

    def late(requests):
        wait_all(requests)
        if position.here()[position.Word.ROUND] == last and position.here()[position.Word.EPOCH]:
            seen.append(time.sleep(late_s))

    if world.rank == 0:
        monkeypatch.setattr(rings, "wait_all", late)
    method = METHOD | {"name": name, "ring": ring, "machine": machine_of(shared_tmp, world)}
    config = configuration(shared_tmp, method=method)
    start(world, config, shared_tmp / "run")
    world.comm.Barrier()
    assert bool(seen) == (world.rank == 0)
    told = lines(shared_tmp / "run", "exchanges")
    assert len(told) == 2
    for exchange in [one for line in told for one in line["exchanges"]]:
        rounds = exchange["rounds"]
        assert [one["round"] for one in rounds] == list(range(1, world.size))
        for key in ("predicted_s", "measured_s"):
            seconds = [one[key] for one in rounds]
            assert min(seconds) > 0
            if ring == "posted":
                assert seconds == sorted(seconds)
                assert seconds[-1] == pytest.approx(exchange[key], rel=1e-6)
            else:
                assert exchange[key] <= sum(seconds) * (1 + 1e-6)
                if ring == "barrier" and key == "predicted_s":
                    assert sum(seconds) == pytest.approx(exchange[key], rel=1e-9)
        assert rounds[-1]["measured_s"] >= late_s
        if world.size > 2 and ring == "barrier":  # else others are in the next exchange, and wait for it in its first
            assert rounds[0]["measured_s"] < exchange["measured_s"] - late_s / 2, "the first is not the late one"


@pytest.mark.parametrize("share", [1e9, 1e-9])
def test_a_drift_measures_the_network_anew_where_that_is_a_small_part(world, shared_tmp, monkeypatch, share):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    monkeypatch.setattr(prices, "MEASURE_SHARE", share)
    factors = iter([1.0, 1.1, 2.0, 3.0])
    monkeypatch.setattr(prices, "factor_of", lambda *_: next(factors))
    config = configuration(shared_tmp, method=METHOD | {"drift": 0.25}, train={"epochs": 17})
    start(world, config, shared_tmp / "run")
    world.comm.Barrier()
    told = lines(shared_tmp / "run", "exchanges")
    if share < 1:
        assert not any(line["measured_anew"] for line in told) and told[3]["drift"] == pytest.approx(2.0)
        return
    assert [line["measured_anew"] for line in told] == [False, False, True, False]
    assert [line["drift"] for line in told] == pytest.approx([0.0, 0.1, 1.0, 0.0]), "3 is the new reference"
    assert [line["epoch"] for line in lines(shared_tmp / "run", "costs")] == [0, 11]


def test_a_described_machine_is_never_measured(world, shared_tmp, monkeypatch):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    factors = iter([1.0, 9.0])
    monkeypatch.setattr(prices, "factor_of", lambda *_: next(factors))
    config = configuration(shared_tmp, method=METHOD | {"machine": machine_of(shared_tmp, world)})
    start(world, config, shared_tmp / "run")
    world.comm.Barrier()
    told = lines(shared_tmp / "run", "exchanges")
    assert told[1]["drift"] == pytest.approx(8.0) and not told[1]["measured_anew"]
    assert not lines(shared_tmp / "run", "costs") and not (shared_tmp / "run" / "machine.toml").exists()


def test_the_closing_table_says_what_choosing_cost(world, shared_tmp, capsys):
    if world.size == 1:
        pytest.skip("one rank chooses nothing")
    start(world, configuration(shared_tmp, method=METHOD), shared_tmp / "run")
    if world.rank == 0:
        shown = capsys.readouterr().out
        assert "chosen 2 times: " in shown and "costs of the network measured in" in shown


def test_a_machine_of_other_ranks_is_refused_before_a_folder_is_made(world, shared_tmp):
    if world.size in (1, 64):
        pytest.skip("fat-tree-64 has 64 devices")
    config = configuration(shared_tmp, method=METHOD | {"machine": "fat-tree-64"})
    with pytest.raises(UserError, match=f"has 64 devices, and this job {world.size} ranks"):
        start(world, config, shared_tmp / "run")
    world.comm.Barrier()
    assert not (shared_tmp / "run").exists()
