"""bench.curves: what it reads out of the record of a run."""

import json
import os
import subprocess
import sys

import pytest

from bench import curves
from bench.curves import BASE, Curve, Run
from simulator.picture import learning
from toolkit import config as configs
from toolkit.errors import UserError


def seed_line(**values):
    scores = {"val": {"accuracy": 0.9}, "test": {"accuracy": 0.875}}
    plain = {"kind": "seed", "seed": 3, "best": {"epoch": 3, "scores": scores}, "epoch_s": 0.5, "train_bytes": 100,
             "setup_bytes": 0, "wall_s": 2.0, "assigning": {}}  # fmt: skip
    return plain | values


def epochs(seconds, evaluated):
    """Epoch lines; ``evaluated``: validation accuracy by epoch."""
    for number, epoch_s in enumerate(seconds):
        line = {"kind": "epoch", "epoch": number, "epoch_s": epoch_s}
        if number in evaluated:
            line |= {"val": {"accuracy": evaluated[number]}, "test": {"accuracy": evaluated[number] - 0.125}}
        yield line


def sent(layer, direction, total, phase="train"):
    """A ``bytes`` line of two ranks."""
    return {
        "kind": "bytes",
        "phase": phase,
        "layer": layer,
        "direction": direction,
        "sent_bytes": [[0, total - 5], [5, 0]],
    }


def exchanges(epoch, number, forward, backward):
    each = [{"layer": 1, "direction": "forward", "num_bytes": forward},
            {"layer": 1, "direction": "backward", "num_bytes": backward}]  # fmt: skip
    return {"kind": "exchanges", "epoch": epoch, "number": number, "exchanges": each}


def assignment(epoch, number):
    return {"kind": "assignment", "epoch": epoch, "number": number}


def adaptive_run(last_total):
    """6 epochs: number 0 up to epoch 2, 1 up to epoch 4, then 2, which no line tells of; layer 0 is not coded."""
    return [
        *epochs([1.0] * 6, {5: 0.9}),
        exchanges(1, 0, 60, 20), assignment(2, 1), exchanges(3, 1, 30, 10), assignment(4, 2),
        seed_line(),
        sent(0, "forward", 600), sent(1, "forward", 3 * 60 + 2 * 30 + last_total),
        sent(1, "backward", 3 * 20 + 2 * 10 + 5),
        sent(1, "forward", 10**6, "evaluate"),
    ]  # fmt: skip


def test_an_epoch_has_the_bytes_of_the_widths_in_force():
    assert curves.epoch_bytes(adaptive_run(25)) == [180, 180, 180, 140, 140, 130]


def test_without_assignments_all_epochs_send_alike():
    lines = [*epochs([1.0] * 4, {3: 0.9}), seed_line(), sent(1, "forward", 100), sent(1, "backward", 60)]
    assert curves.epoch_bytes(lines) == [40] * 4


def test_a_record_that_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="-10 bytes are left over"):
        curves.epoch_bytes(adaptive_run(-15))
    whole = [*adaptive_run(25), exchanges(5, 2, 25, 4)]
    with pytest.raises(ValueError, match=r"1 bytes are left over for assignments \[\]"):
        curves.epoch_bytes(whole)


def test_a_curve_begins_with_what_came_before_the_first_epoch():
    """Measuring the network anew is in its epoch already, and counts once."""
    lines = [
        {"kind": "costs", "seconds": 1.0}, {"kind": "costs", "seconds": 0.5},
        *epochs([2.0, 1.0, 1.0, 1.0], {1: 0.5, 3: 0.75}),
        seed_line(assigning={"calibrate_s": 1.75}, setup_bytes=1000), sent(1, "forward", 400),
    ]  # fmt: skip
    assert curves.curve_of(lines, setup_s=0.25) == Curve(
        epochs=[2, 4], seconds=[4.5, 6.5], num_bytes=[1200, 1400], val=[0.5, 0.75], test=[0.375, 0.625]
    )


def test_assignments_hold_up_training_for_a_share_of_it():
    spent = {"calibrate_s": 1.0, "trace_s": 0.06, "wait_s": 0.04, "beside_s": 9.0, "assignments": 2}
    lines = [*(seed_line(assigning=spent) if line["kind"] == "seed" else line for line in adaptive_run(25))]
    run = curves.run_of(lines)
    assert (run.seed, run.test, run.calibrate_s) == (3, 0.875, 1.0)
    assert run.held_up_share == pytest.approx(0.05)
    assert run.held_up_share_at_paper_period == pytest.approx((0.06 / 2 + 0.04 / 2) / (50 * 0.5))


def run(seconds, val, seed=0, calibrate_s=0.0):
    """A run that sends 10 bytes a second."""
    curve = Curve(epochs=[2 * (i + 1) for i in range(len(val))], seconds=seconds, num_bytes=[10 * s for s in seconds],
                  val=val, test=val)  # fmt: skip
    return Run(seed=seed, curve=curve, test=max(val), epoch_s=1.0, train_bytes=10, calibrate_s=calibrate_s,
               held_up_share=0.0, held_up_share_at_paper_period=0.0)  # fmt: skip


BASES = [run([10, 20, 30], [0.5, 0.9, 0.89]), run([10, 20, 40], [0.5, 0.7, 0.8], 1)]
QUICK = [run([1, 2, 4], [0.5, 0.896, 0.898], calibrate_s=3.0), run([1, 2, 3], [0.5, 0.79, 0.78], 1)]


def test_the_target_is_that_of_the_same_seed():
    near, wide = (curves.reached(QUICK, BASES, tolerance) for tolerance in (0.003, 0.01))
    first = {"epochs": 6, "seconds": 4, "num_bytes": 40, "x_seconds": 5, "x_seconds_costs_known": 20, "x_bytes": 5}
    assert near["seeds"] == [first, None]
    assert near["reached"] == 1
    assert near["seconds"] == {"mean": None, "deviation": None}, "a mean of those that get there would praise it"
    assert wide["reached"] == 2
    assert wide["x_seconds"] == {"mean": 15, "deviation": pytest.approx(50**0.5)}
    assert curves.reached(BASES, BASES, 0.003)["x_bytes"] == {"mean": 1, "deviation": 0}


def test_a_target_is_reached_that_rounding_puts_out_of_reach():
    assert run([1, 2], [0.5, 0.96]).curve.first_within(0.96 + 1e-12) == 1
    assert run([1, 2], [0.5, 0.96]).curve.first_within(0.9601) is None


def test_no_mean_of_the_seeds_that_get_there():
    slow = [run([1, 2, 3], [0.1, 0.2, 0.3]), run([1, 2, 3], [0.1, 0.2, 0.3], 1)]
    found = {BASE: BASES, "quick": QUICK, "slow": slow}
    text = curves.tables({name: curves.told(runs, BASES) for name, runs in found.items()}, 2)
    runs, near, wide = text.split("\n\n")
    assert "85.00 +- 7.07" in runs.splitlines()[2]
    assert near.splitlines()[0] == f"validation reaches the best of {BASE}, same seed, less 0.30 %-points"
    assert near.splitlines()[4].split() == ["quick", "1", "of", "2", *["-"] * 6]
    assert near.splitlines()[5].split() == ["slow", "0", "of", "2", *["-"] * 6]
    assert "15.00 +- 7.07" in wide.splitlines()[4]


def test_every_method_is_one_that_trains():
    made = {name: curves.with_overrides(configs.Config(), more) for name, more in curves.methods(7, 3).items()}
    assert next(iter(made)) == BASE
    assert {name for name, config in made.items() if config.method.plan == "paper"} == {BASE, "AdaQP as published"}
    published, ours = made["AdaQP as published"].method, made["adaptive"].method
    assert (published.quantise_all, published.policy, published.hidden) == (True, "adaptive", False)
    assert (ours.name, ours.widths, ours.period, ours.lead, ours.lam) == ("adaqp", "adaptive", 7, 3, 0.5)
    with pytest.raises(UserError, match=r"method\.period is 0"):
        curves.with_overrides(configs.Config(), curves.methods(0, 3)["adaptive"])


def test_a_folder_of_another_configuration_is_not_taken(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "summary"}) + "\n")
    (tmp_path / "config.toml").write_text(configs.to_toml(configs.Config()))
    assert curves.train(None, configs.Config(), tmp_path) == [{"kind": "summary"}]
    with pytest.raises(UserError, match="another configuration"):
        curves.train(None, configs.Config(train=configs.Train(epochs=7)), tmp_path)


def test_the_picture_names_methods_and_units(tmp_path):
    path = tmp_path / "curves.svg"
    learning(path, [curves.for_picture("cora", "gcn", {BASE: BASES, "quick": QUICK})])
    text = path.read_text()
    for words in ("cora, gcn: accuracy over seconds", "training seconds", "MB of rows", BASE, "quick", "best - 0.3"):
        assert words in text  # matplotlib names each text in a comment


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_bytes_by_epoch_of_a_real_run_sum_to_what_it_counted(tmp_path):
    """3 periods of 3 epochs: every assignment sees the end of its period, so nothing is left to make them agree."""
    path, folder = tmp_path / "digits.toml", tmp_path / "run"
    path.write_text('[data]\nname = "digits"\n[run]\ntimeout_s = 60.0\n[train]\nthreads = 1\n')
    overrides = ["method.name=adaqp", "method.period=3", "method.lead=1", "method.machine=emulated-4", "train.epochs=9"]
    command = [sys.executable, "-m", "toolkit.cli", "train", str(path), "-np", "4", "--run-dir", str(folder)]
    command += ["--launcher", "mpirun", *(word for override in overrides for word in ("--set", override))]
    more = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | more)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    each = curves.epoch_bytes(lines)
    assert len(each) == 9 and len(set(each)) > 1
    assert [line["number"] for line in lines if line["kind"] == "exchanges"] == [0, 1, 2]
    sent = [line["sent_bytes"] for line in lines if line["kind"] == "bytes" and line["phase"] == "train"]
    assert sum(each) == sum(sum(map(sum, table)) for table in sent)
