"""simulate, trace, tune and sweep on a saved workload: no MPI, no torch."""

import dataclasses
import gzip
import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator import machine as machines
from simulator import workload as workloads
from simulator.choice import METHODS
from simulator.cost import PairCosts
from simulator.epoch import simulate, with_bits
from simulator.machine import Host, Machine, preset
from simulator.made import allreduce_s, at_costs
from simulator.maxplus import SEMANTICS
from tests.simulator.test_epoch import workload
from toolkit import cli, report
from toolkit.commands import options, sweep
from toolkit.errors import UserError

MACHINE = ["--machine", "emulated-4"]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "workload.npz"
    workloads.save(workload(4), path)
    return path


def bitring(*words, cwd=None):
    command = [sys.executable, "-m", "toolkit.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_simulate_tells_the_epoch(saved):
    told = json.loads(bitring("simulate", saved, *MACHINE, "--json").stdout)
    assert told["epoch_s"] == pytest.approx(simulate(workload(4), preset("emulated-4").topology()).epoch_s)
    assert told["channel_bytes"] == [e.channel_bytes().tolist() for e in workload(4).exchanges]
    narrow = json.loads(bitring("simulate", saved, *MACHINE, "--bits", 2, "--json").stdout)
    assert narrow["num_bytes"] < told["num_bytes"] and narrow["epoch_s"] < told["epoch_s"]
    shown = bitring("simulate", saved, *MACHINE, "--policy", "adaptive", "--group-size", 5)
    assert shown.returncode == 0 and "gap 0.0e+00" in shown.stdout and "backward" in shown.stdout


def told_of(*words, **environment):
    done = bitring(*words, "--json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_everything_that_was_asked_is_in_the_json(saved):
    """Methods, stragglers, other choices, the critical path: one frozen answer."""
    slow = ["device:2=1.5", "link:0-1=lognormal:0.3", "device=lognormal:0.2"]
    asked = [word for one in slow for word in ("--straggler", one)] + ["--epochs", 30, "--seed", 5]
    told = told_of(
        "simulate", saved, *MACHINE, "--links", "apart", *asked, "--against", "bits=2", "--against", "pipelined"
    )
    assert sum(piece["end_s"] - piece["begin_s"] for piece in told["path"]) == pytest.approx(told["epoch_s"], abs=1e-9)
    assert sum(piece["seconds"] for piece in told["path_by_stage"]) == pytest.approx(told["epoch_s"], abs=1e-9)
    slow = told["disturbed"]
    assert slow["epochs"]["p5_s"] <= slow["epochs"]["mean_s"] <= slow["epochs"]["p95_s"]
    assert slow["all_stragglers"]["mean"] == pytest.approx(slow["epochs"]["mean_s"] - told["epoch_s"])
    assert len(slow["each"]) == 3 and slow["each"][0]["low"] <= slow["each"][0]["mean"] <= slow["each"][0]["high"]
    assert [other["choice"] for other in told["against"]] == ["bits=2", "pipelined"]
    assert told["against"][0]["difference"]["mean"] < 0
    again = told_of("simulate", saved, *MACHINE, "--links", "apart", *asked)
    assert again["disturbed"] == slow
    asked[-1] = 6
    assert told_of("simulate", saved, *MACHINE, "--links", "apart", *asked)["disturbed"] != slow


def test_recorded_stragglers_come_from_a_file(saved, tmp_path):
    (tmp_path / "factors.txt").write_text("1\n3\n")
    word = f"device=recorded:{tmp_path / 'factors.txt'}"
    told = told_of("simulate", saved, *MACHINE, "--straggler", word, "--epochs", 10)["disturbed"]["epochs"]
    assert told["p5_s"] < told["mean_s"] < told["p95_s"]
    shown = bitring("simulate", saved, *MACHINE, "--straggler", word, "--epochs", 10).stdout
    assert "costs an epoch" in shown and "95 % confidence" in shown


def test_methods_by_name(saved):
    vanilla = told_of("simulate", saved, *MACHINE, "--method", "vanilla")
    hidden = told_of("simulate", saved, *MACHINE, "--method", "pipelined")
    assert hidden["epoch_s"] < vanilla["epoch_s"] and hidden["parameters"] == {"staleness": 1.0}
    fresh = told_of("simulate", saved, *MACHINE, "--method", "pipelined", "--set", "staleness=0")
    assert fresh["epoch_s"] == pytest.approx(vanilla["epoch_s"], rel=1e-9)
    nodes = ["--set", "nodes=400"]
    whole = told_of("simulate", saved, *MACHINE, "--method", "broadcast", *nodes)
    skipped = told_of("simulate", saved, *MACHINE, "--method", "skip-broadcast", *nodes, "--set", "staleness=3")
    assert skipped["num_bytes"] < whole["num_bytes"] and skipped["epoch_s"] < whole["epoch_s"]
    gist = told_of("simulate", saved, *MACHINE, "--method", "gist")
    assert gist["num_bytes"] < vanilla["num_bytes"]
    assert sum(p["end_s"] - p["begin_s"] for p in gist["path"]) == pytest.approx(gist["epoch_s"], abs=1e-9)
    assigned = told_of(
        "simulate", saved, *MACHINE, "--policy", "adaptive", "--method", "quantised",
        "--set", "period=10", "--set", "assign_s=1",
    )  # fmt: skip
    assert assigned["beside_s"] == pytest.approx(0.1) and assigned["epoch_s"] > 0.1
    assert sum(p["end_s"] - p["begin_s"] for p in assigned["path"]) == pytest.approx(assigned["epoch_s"], abs=1e-9)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A cache of its own, and no torch, no MPI to be had."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no MPI here')")
    monkeypatch.setenv("BITRING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parent.parent}")


def test_a_workload_without_a_run(environment, tmp_path):
    graph = ["--graph", "digits", "--set", "model.layers=3"]
    told = told_of("simulate", *graph, "-k", 3, "--set", "model.hidden=32", "--save", tmp_path / "made.npz")
    assert told["ranks"] == 3 and any("assumed" in note for note in told["notes"])
    kept = workloads.load(tmp_path / "made.npz")
    assert kept.epoch_bytes() == told["num_bytes"] and kept.inner.sum() == 1797
    wide = told_of("simulate", *graph, "-k", 3, "--set", "model.hidden=64")
    assert wide["num_bytes"] > told["num_bytes"] and wide["dense_s"] > told["dense_s"]
    fast = told_of("simulate", *graph, "-k", 3, "--set", "model.hidden=32", "--flop-s", 1e15, "--memory-byte-s", 1e15)
    assert fast["dense_s"] < 0.01 * told["dense_s"] and not any("assumed" in note for note in fast["notes"])
    four = told_of("simulate", *graph, "-k", 4, *MACHINE, "--method", "broadcast")
    assert four["machine"] == "emulated-4"
    checked = told_of(
        "simulate", *graph, "-k", 3, "--set", "model.hidden=32", "--rates-here", "--check", tmp_path / "made.npz"
    )
    assert 0 < checked["compute_ratios"]["compute"] < 1e6


def test_a_sweep_over_ranks_and_methods(environment, tmp_path):
    done = bitring(
        "sweep", "--graph", "digits", "-k", 2, 4, "--lambdas", 2, "--group-sizes", 20, "--bandwidths", 0.01, 1,
        "--methods", "adaptive", "posted", "fixed", "pipelined", "broadcast", "skip-broadcast", "gist",
        "--set", "staleness=2", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * (2 + 2 + 6 + 4)
    assert {row["ranks"] for row in rows} == {2, 4}
    epochs = {(r["ranks"], r["bandwidth_factor"], r["method"], r["lambda"]): r["epoch_s"] for r in rows}
    assert epochs[4, 0.01, "pipelined", None] < epochs[4, 0.01, "fixed 32", None]
    assert epochs[4, 0.01, "posted", 0.0] <= epochs[4, 0.01, "adaptive", 1.0]


class FakeArrow:
    """Stands in for pyarrow and pyarrow.parquet."""

    class Table:
        from_pylist = staticmethod(lambda rows: rows)

    @staticmethod
    def write_table(rows, path):
        path.write_text(json.dumps(rows))


def test_parquet_where_pyarrow_is(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: FakeArrow)
    sweep.write(tmp_path / "s.parquet", [{"a": 1}])
    assert json.loads((tmp_path / "s.parquet").read_text()) == [{"a": 1}]

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match="pip install pyarrow"):
        sweep.write(tmp_path / "t.parquet", [{"a": 1}])
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]


def test_a_real_parquet_file(saved, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    done = bitring("sweep", saved, *MACHINE, "--lambdas", 2, "--group-sizes", 5, "--out", tmp_path / "s.parquet")
    assert done.returncode == 0, done.stderr
    rows = parquet.read_table(tmp_path / "s.parquet").to_pylist()
    assert len(rows) == 3 * (2 + 6) and {"epoch_s", "method", "lambda"} <= rows[0].keys()


def test_a_timeline_and_a_picture(saved, tmp_path):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "t.json.gz", tmp_path / "t.png"
    done = bitring("trace", saved, *MACHINE, "--out", out, "--picture", picture)
    assert done.returncode == 0, done.stderr
    assert json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert picture.stat().st_size > 10_000
    told = told_of("trace", saved, *MACHINE, "--bits", 2, "--out", out)
    assert told["epoch_s"] == pytest.approx(told_of("simulate", saved, *MACHINE, "--bits", 2)["epoch_s"])
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert {e["args"]["bits"] for e in events if e["name"] == "bits in flight"} == {0.0, 2.0}


def test_tune_shows_a_front_and_its_knee(saved):
    points = json.loads(bitring("tune", saved, *MACHINE, "--group-sizes", 2, 20, "--lambdas", 5, "--json").stdout)
    assert len(points) == 10 + 4 and sum(point["knee"] for point in points) == 1
    assert next(point for point in points if point["knee"])["on_front"]


def test_a_sweep_goes_to_a_file(saved, tmp_path):
    pytest.importorskip("matplotlib")
    done = bitring(
        "sweep", saved, *MACHINE, "--lambdas", 3, "--group-sizes", 5, "--bandwidths", 0.1, 1, "--semantics", "posted",
        "barrier", "--picture", "front.svg", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * (3 + 6)
    by_key = {(p["bandwidth_factor"], p["semantics"], p["method"], p["lambda"]): p["epoch_s"] for p in lines}
    assert by_key[0.1, "posted", "fixed 32", None] > by_key[1, "posted", "fixed 32", None]
    assert by_key[1, "barrier", "fixed 32", None] >= by_key[1, "posted", "fixed 32", None]
    assert (tmp_path / "front.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["simulate", "WORKLOAD", "--machine", "nvlnk-4"], "did you mean 'nvlink-4'"),
        (["simulate", "WORKLOAD", "--machine", "two-hosts-10g"], "is of 4 ranks, and machine two-hosts-10g has 2"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "best"], "there is no policy 'best'"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "adaptive", "--lam", "2"], "lambda is 2"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "adaptive", "--group-size", "0"], "group_size is 0"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "fixed", "--bits", "2"], "both choose widths"),
        (["tune", "WORKLOAD", *MACHINE, "--lambdas", "1"], "--lambdas is 1"),
        (["trace", "WORKLOAD", *MACHINE, "--out", "/nowhere/t.gz"], "can't write the timeline"),
        (["sweep", "WORKLOAD", *MACHINE, "--bandwidths", "0"], "--bandwidths above 0"),
        (["sweep", *MACHINE], "give WORKLOAD and --machine, or --graph and -k"),
        (["sweep", "--graph", "digits"], "--graph goes with -k"),
        (["sweep", "WORKLOAD", *MACHINE, "--flop-s", "1"], "--flop-s goes with --graph"),
        (["sweep", "WORKLOAD", *MACHINE, "--set", "staleness=2"], "is a parameter of none of adaptive, fixed"),
        (["simulate", "WORKLOAD", *MACHINE, "--method", "pipelined", "--no-overlap"], "--no-overlap says nothing"),
        (["simulate", "WORKLOAD"], "--machine is missing"),
        (["simulate"], "give WORKLOAD and --machine"),
        (["simulate", "--graph", "WORKLOAD", "-k", "4"], "is a workload, not a graph: leave out --graph"),
        (["simulate", "/nowhere/w.npz", *MACHINE], "there is no file /nowhere/w.npz"),
        (["simulate", __file__, *MACHINE], "is no workload file (not an .npz archive)"),
        (["simulate", "WORKLOAD", *MACHINE, "--lam", "0.3"], "--lam 0.3 goes with a policy"),
        (["trace", "WORKLOAD", *MACHINE, "--group-size", "5"], "--group-size 5 goes with a policy"),
        (["simulate", "WORKLOAD", *MACHINE, "--budget", "joint"], "--budget joint goes with a policy"),
        (["simulate", "WORKLOAD", *MACHINE, "--policy", "random", "--budget", "joint"], "not with random"),
        (["simulate", "WORKLOAD", *MACHINE, "--against", "policy=posted,budget=x"], "a budget is each or joint"),
        (["simulate", "WORKLOAD", *MACHINE, "--straggler", "device:0=0"], "a factor of 0 is no time"),
        (["simulate", "WORKLOAD", *MACHINE, "--straggler", "link:0-0=2"], "from 0 to itself"),
        (["simulate", "WORKLOAD", *MACHINE, "--graph", "digits"], "both say what is simulated"),
        (["simulate", "--graph", "digits"], "--graph needs -k"),
        (["simulate", "--graph", "digits", "-k", "0"], "-k is 0"),
        (["simulate", "--graph", "digitz", "-k", "2"], "did you mean 'digits'"),
        (["simulate", "--graph", "digits", "-k", "2", *MACHINE], "-k 2 is of 2 ranks, and machine emulated-4 has 4"),
        (["simulate", "--graph", "digits", "-k", "2", "--set", "model.hiden=3"], "did you mean 'hidden'"),
        (["simulate", "--graph", "digits", "-k", "2", "--flop-s", "-1"], "flop_s is -1"),
        (["simulate", "WORKLOAD", *MACHINE, "-k", "4"], "-k goes with --graph"),
        (["simulate", "WORKLOAD", *MACHINE, "--set", "model.hidden=3"], "goes with --graph"),
        (["simulate", "WORKLOAD", *MACHINE, "--set", "staleness=3"], "name it with --method"),
        (["simulate", "WORKLOAD", *MACHINE, "--save", "x.npz"], "goes with --graph"),
        (["simulate", "WORKLOAD", *MACHINE, "--check", "x.npz"], "goes with --graph"),
        (
            ["simulate", "WORKLOAD", *MACHINE, "--method", "pipelined", "--set", "stalenes=3"],
            "did you mean 'staleness'",
        ),
        (["simulate", "WORKLOAD", *MACHINE, "--method", "pipelined", "--bits", "2"], "go with method quantised"),
        (["simulate", "WORKLOAD", *MACHINE, "--method", "broadcast"], "give nodes"),
        (["simulate", "WORKLOAD", *MACHINE, "--straggler", "disk:1=2"], "no straggler; give device:2=1.5"),
        (["simulate", "WORKLOAD", *MACHINE, "--straggler", "device:7=2"], "device 7 is not there"),
        (["simulate", "WORKLOAD", *MACHINE, "--straggler", "link=2"], "give --links apart or shared"),
        (["simulate", "WORKLOAD", *MACHINE, "--straggler", "device=2", "--epochs", "1"], "--epochs is 1"),
        (["simulate", "WORKLOAD", *MACHINE, "--against", "pipelnied"], "did you mean 'pipelined'"),
        (["simulate", "WORKLOAD", *MACHINE, "--against", "bits=5"], "bits are one of"),
        (["simulate", "WORKLOAD", *MACHINE, "--against", "lamb=5"], "is no choice"),
        (["simulate", "WORKLOAD", *MACHINE, "--against", "lam=0.2"], "lam goes with a policy"),
        (["simulate", "WORKLOAD", *MACHINE, "--flop-s", "0"], "--flop-s goes with --graph"),
        (["simulate", "--graph", "digits", "-k", "2", "--flop-s", "0"], "flop_s is 0"),
    ],
)
def test_refusals(saved, words, sentence):
    """Told by the command itself; what main() makes of it is below."""
    args = cli.parser().parse_args([str(saved) if word == "WORKLOAD" else word for word in words])
    with pytest.raises(UserError) as refused:
        args.run(args)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["simulate"],
        ["simulate", "--links", "fair"],
        ["trace"],
        ["place"],
        ["tune", "--lambdas", "2"],
        ["sweep", "--lambdas", "2"],
    ],
)
def test_a_machine_in_two_pieces_is_refused(saved, tmp_path, words):
    """Unless its costs were measured and it is they that are asked for."""
    path, hosts = tmp_path / "machine.toml", "".join(f'[[hosts]]\nname = "{name}"\n' for name in "abcd")
    path.write_text(f'version = 1\nname = "x"\n{hosts}')
    args = cli.parser().parse_args([words[0], str(saved), "--machine", str(path), *words[1:]])
    with pytest.raises(UserError, match="there is no path from a/0 to b/0"):
        args.run(args)


def test_measured_costs_need_no_links_unless_links_are_asked_for(saved, tmp_path, capsys):
    path = tmp_path / "machine.toml"
    pairs = PairCosts(theta_s_per_byte=np.full((4, 4), 1e-8), gamma_s=np.full((4, 4), 1e-4))
    machines.write(Machine(name="x", hosts=tuple(Host(name=name) for name in "abcd"), fitted=pairs), path)
    words = ["simulate", str(saved), "--machine", str(path)]
    args = cli.parser().parse_args(words)
    assert args.run(args) == 0
    args = cli.parser().parse_args([*words, "--links", "fair"])
    with pytest.raises(UserError, match="give --links apart"):
        args.run(args)


def test_a_sweep_tells_workloads_of_as_many_ranks_apart(saved, tmp_path, capsys):
    other = tmp_path / "other.npz"
    workloads.save(workload(4, 1), other)
    words = ["--lambdas", "2", "--group-sizes", "5", "--bandwidths", "1", "--out", str(tmp_path / "s.jsonl")]
    args = cli.parser().parse_args(["sweep", str(saved), str(other), *MACHINE, *words])
    assert args.run(args) == 0
    shown = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    for path in (saved, other):
        own = [row["epoch_s"] for row in rows if row["workload"] == str(path) and row["method"] == "fixed 32"]
        assert len(own) == 1
        (line,) = [line for line in shown.splitlines() if line.startswith(f"{path} ")]
        assert report.seconds(own[0]) in line
    assert "links apart: every pair has one of its own; simulate's auto" in shown


def test_a_sweep_scales_the_gradients_with_the_bandwidth(saved, tmp_path):
    """What is made has an allreduce over the costs; a network of a tenth makes its bytes ten times as long."""
    costs = preset("emulated-4").pair_costs()
    slow = costs.at_bandwidth(0.1)
    made = dataclasses.replace(workload(4), weight_gradient_bytes=10**6, weight_gradient_s=allreduce_s(10**6, costs))
    assert at_costs(made, costs, slow).weight_gradient_s == pytest.approx(allreduce_s(10**6, slow))
    workloads.save(made, saved)
    words = ["--lambdas", "2", "--group-sizes", "5", "--bandwidths", "0.1", "--out", str(tmp_path / "s.jsonl")]
    args = cli.parser().parse_args(["sweep", str(saved), *MACHINE, *words])
    assert args.run(args) == 0
    rows = map(json.loads, (tmp_path / "s.jsonl").read_text().splitlines())
    (found,) = [row["epoch_s"] for row in rows if row["method"] == "fixed 32"]
    sent = dataclasses.replace(with_bits(made, 32), weight_gradient_s=allreduce_s(10**6, slow))
    assert found == pytest.approx(simulate(sent, slow).epoch_s)


def test_a_sweep_shows_what_tune_would_choose(saved, tmp_path, capsys):
    words = ["--lambdas", "5", "--group-sizes", "2", "20", "--methods", "posted", "fixed", "--bandwidths", "1"]
    args = cli.parser().parse_args(["sweep", str(saved), *MACHINE, *words, "--out", str(tmp_path / "s.jsonl")])
    assert args.run(args) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{saved} ")]
    points = told_of("tune", saved, *MACHINE, "--links", "apart", "--lambdas", 5, "--group-sizes", 2, 20)
    (chosen,) = [point for point in points if point["chosen"]]
    assert f"{chosen['variance_bound']:.3g}" in line and report.seconds(chosen["epoch_s"]) in line


def test_a_run_that_kept_its_machine_is_told_of_it(saved):
    (saved.parent / "machine.toml").write_text("")
    args = cli.parser().parse_args(["simulate", str(saved.parent)])
    with pytest.raises(UserError, match=f"--machine {saved.parent}/machine.toml"):
        args.run(args)


def test_solving_stands_beside_the_epoch(saved):
    """Training goes on meanwhile: the same words, the same epoch."""
    words = ["simulate", saved, *MACHINE, "--policy", "adaptive", "--group-size", 5]
    one, two = told_of(*words), told_of(*words)
    assert one["epoch_s"] == two["epoch_s"] and one["beside_s"] == 0 and one["solve_s"] > 0
    shown = bitring(*words).stdout
    assert "beside training (not in the epoch)" in shown and "assign_s" not in shown


def test_what_a_method_leaves_out_is_said(saved):
    nodes = ["--set", "nodes=400"]
    old = bitring("simulate", saved, *MACHINE, "--method", "pipelined").stdout
    assert "that rows are stale isn't counted" in old and "limit" not in old
    assert "No critical path of pipelined: its epochs overlap" in old
    skipped = bitring("simulate", saved, *MACHINE, "--method", "skip-broadcast", *nodes).stdout
    assert "skip-broadcast (staleness 1, on forward, nodes 400)" in skipped
    assert "trained apart isn't counted" in bitring("simulate", saved, *MACHINE, "--method", "gist").stdout
    assert "limit" in bitring("simulate", saved, *MACHINE, "--method", "vanilla").stdout


def test_the_parser_knows_what_the_simulator_knows():
    """Its lists are written out, as help must not wait for numpy."""
    assert set(options.RINGS) == set(SEMANTICS)
    assert tuple(METHODS) == options.METHODS
    assert set(options.SWEPT) == {*sweep.BY_LAMBDA, "fixed", *METHODS} - {"vanilla", "quantised"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["simulate", "WORKLOAD", "--machine", "nvlnk-4"], "did you mean 'nvlink-4'"),
        (["trace", "WORKLOAD", *MACHINE, "--out", "/nowhere/t.gz"], "can't write the timeline"),
        (["sweep", "WORKLOAD", *MACHINE, "--out", "/nowhere/s.jsonl", "--lambdas", "2"], "can't write the sweep"),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_2(saved, words, sentence):
    done = bitring(*(saved if word == "WORKLOAD" else word for word in words))
    assert done.returncode == 2
    assert sentence in done.stderr and done.stderr.startswith("bitring: ")
    assert "Traceback" not in done.stderr
