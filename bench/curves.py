"""Accuracy over seconds and over bytes, of whole trainings on the emulated network.

    python -m bench.curves [--network alike|unequal] [--graphs coauthor_physics] [--kinds gcn] [--seeds 3]
                           [--epochs 60] [--eval-every 2] [--period 20] [--lead 5] [--runs FOLDER]

Real runs by `bitring train`, one rank on each of 4 hosts, one run after the other, seeds outermost: the papers'
plan and the exact plan in float32, fixed 4 bits, drawn widths, AdaQP as published (the papers' plan, layer 0 and
evaluation quantised too, AdaQP's own objective), and adaptive widths as they are by default. Told of each, mean and
sample deviation over seeds: test accuracy at best validation, and the seconds and bytes after which validation first
comes within 0.3 points (the papers' tolerance), and within 1 point, of the best of the papers' plan in float32
from the same seed; ratios against that run, also as they were had the network's costs been known (method.machine).
Filed with the points of every curve, and drawn.

Seconds are rank 0's of whole epochs. Ranks begin an epoch together and sum gradients in it, so the slowest rank is in
them, but for its last optimiser step; so are the seconds for which assignments hold training up. Evaluations are
not. Before the first epoch stand what measuring the network took, and where layer 0's rows travel once, the seconds
that they take in the papers' plan: the record has no clock there. Bytes are those of rows in training, of all ranks,
layer 0's among them. With adaptive widths they are those of the period; drawn widths count with their mean, which
differs little from draw to draw. Adaptive widths begin with 8 bits for a period and a lead.

Needs root and $BITRING_DATA, and half an hour or more. --runs keeps the run folders, and takes those that
are there already and complete as they are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.adaptive import PUBLISHED
from bench.common import RESULTS, file_result
from bench.fidelity import networks
from bench.netlab import Lab
from bench.netlab.lab import python
from bench.overlap import configuration
from simulator import workload
from simulator.picture import learning
from toolkit import config as configs
from toolkit import report
from toolkit.errors import UserError
from toolkit.train.recorder import is_finished

BASE = "paper plan, float32"
TOLERANCES = (0.003, 0.01)  # of validation accuracy
LEAST_GAIN = 1e-9  # what a difference of accuracies may be off by rounding
PAPER_PERIOD = 50  # the shortest of the published ones
GOAL_SHARE = 0.005  # of training, for which assignments of that period may hold it up
PATIENCE_S = 60.0  # a rank of a machine that is busy is late, not dead
Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A run at each of its evaluations, all since its beginning."""

    epochs: list[int]  # done
    seconds: list[float]
    num_bytes: list[float]
    val: list[float]
    test: list[float]

    def first_within(self, target: float) -> int | None:
        """The first evaluation whose validation accuracy is ``target`` or more; None: never."""
        return next((at for at, val in enumerate(self.val) if val >= target - LEAST_GAIN), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One method from one seed."""

    seed: int
    curve: Curve
    test: float  # accuracy at best validation
    epoch_s: float  # median
    train_bytes: int  # of an epoch, mean
    calibrate_s: float  # measuring the network before the first epoch
    held_up_share: float  # of training; 0 where no widths are chosen
    held_up_share_at_paper_period: float


def methods(period: int, lead: int) -> dict[str, list[str]]:
    """Overrides of the exact plan in float32."""
    quantised = "method.codec=quantised"
    chosen = [quantised, "method.widths=adaptive", f"method.period={period}", f"method.lead={lead}", "method.lam=0.5"]
    return {
        BASE: ["method.plan=paper"],
        "exact plan, float32": [],
        "4 bits": [quantised, "method.bits=4"],
        "drawn from 2, 4, 8": [quantised, "method.widths=uniform", f"method.period={period}"],
        "AdaQP as published": [*chosen, *PUBLISHED],
        "adaptive": [*chosen, "method.name=adaqp"],
    }


def epoch_bytes(lines: Sequence[Line]) -> list[float]:
    """Bytes of rows that all ranks send in each epoch, from the record of a run of one seed.

    Adaptive widths: ``exchanges`` lines tell the bytes of every assignment that saw the end of its period. The last one
    may not have: it has what is left of the run's total. What has no such line is the same in all epochs, or nearly.
    ValueError where lines and total don't go together.
    """
    epochs = sum(line["kind"] == "epoch" for line in lines)
    total = {
        (line["layer"], line["direction"]): sum(map(sum, line["sent_bytes"]))
        for line in lines
        if line["kind"] == "bytes" and line["phase"] == "train"
    }
    known: dict[int, int] = {}  # by assignment: bytes of an epoch's coded exchanges
    coded: set[tuple[int, str]] = set()
    for line in lines:
        if line["kind"] == "exchanges":
            known[line["number"]] = sum(one["num_bytes"] for one in line["exchanges"])
            coded |= {(one["layer"], one["direction"]) for one in line["exchanges"]}
    in_force = [0] * epochs
    for line in lines:
        if line["kind"] == "assignment":
            in_force[line["epoch"] + 1 :] = [line["number"]] * (epochs - line["epoch"] - 1)
    left = sum(total[key] for key in total if key in coded) - sum(known.get(number, 0) for number in in_force)
    unknown = [number for number in in_force if number not in known]
    if coded and (left < 0 or (left > 0 and not unknown) or len(set(unknown)) > 1):
        raise ValueError(f"{left} bytes are left over for assignments {sorted(set(unknown))}: the record is not whole")
    rest = left / len(unknown) if coded and unknown else 0.0
    others = sum(total[key] for key in total if key not in coded) / epochs
    return [others + (known.get(number, rest) if coded else 0.0) for number in in_force]


def start_s(lines: Sequence[Line]) -> float:
    """Seconds before the first epoch in which the network was measured; later measurements are in their epochs."""
    within = [line["seconds"] for line in lines if line["kind"] == "costs"][1:]
    return float(_seed(lines)["assigning"].get("calibrate_s", 0.0) - sum(within))


def curve_of(lines: Sequence[Line], setup_s: float = 0.0) -> Curve:
    """The curve of a run's record. ``setup_s``: what sending layer 0's rows once took."""
    seconds, num_bytes = start_s(lines) + setup_s, float(_seed(lines)["setup_bytes"])
    points = []
    epochs = [line for line in lines if line["kind"] == "epoch"]
    for line, sent in zip(epochs, epoch_bytes(lines), strict=True):
        seconds, num_bytes = seconds + line["epoch_s"], num_bytes + sent
        if "val" in line:
            points.append((line["epoch"] + 1, seconds, num_bytes, line["val"]["accuracy"], line["test"]["accuracy"]))
    columns = map(list, zip(*points, strict=True))
    return Curve(**dict(zip(("epochs", "seconds", "num_bytes", "val", "test"), columns, strict=True)))


def run_of(lines: Sequence[Line], setup_s: float = 0.0) -> Run:
    """All that is told of one run."""
    told = _seed(lines)
    spent, traces = told["assigning"], sum(line["kind"] == "exchanges" for line in lines)
    each = 0.0  # seconds that one assignment holds training up
    if traces:
        each = spent["trace_s"] / traces + spent["wait_s"] / max(spent["assignments"], 1)
    return Run(
        seed=told["seed"],
        curve=curve_of(lines, setup_s),
        test=told["best"]["scores"]["test"]["accuracy"],
        epoch_s=told["epoch_s"],
        train_bytes=told["train_bytes"],
        calibrate_s=start_s(lines),
        held_up_share=(spent.get("trace_s", 0.0) + spent.get("wait_s", 0.0)) / told["wall_s"],
        held_up_share_at_paper_period=each / (PAPER_PERIOD * told["epoch_s"]),
    )


def _seed(lines: Sequence[Line]) -> Line:
    (told,) = (line for line in lines if line["kind"] == "seed")
    return told


def layer_0_s(folder: Path) -> float:
    """Seconds that layer 0's rows take in an epoch of the papers' plan, at the slowest rank, a byte."""
    first = next(
        e for e in workload.load(folder / "workload.npz").exchanges if (e.layer, e.direction) == (0, "forward")
    )
    return float((first.encode_s + first.flight_s + first.decode_s).max() / max(first.channel_bytes().sum(), 1))


def train(lab: Lab, config: configs.Config, folder: Path) -> list[Line]:
    """The record of one run, in ``folder``: trained now, unless it is there and complete."""
    if is_finished(folder):
        if (folder / "config.toml").read_text() != configs.to_toml(config):
            raise UserError(f"{folder} holds a run of another configuration; name another folder with --runs")
    else:
        shutil.rmtree(folder, ignore_errors=True)  # one that was broken off
        folder.parent.mkdir(parents=True, exist_ok=True)
        path = folder.with_name(f"{folder.name}.toml")
        path.write_text(configs.to_toml(config))
        code = lab.mpirun(python("toolkit.cli", "train", str(path), "--run-dir", str(folder))).returncode
        if code:
            raise UserError(f"the run in {folder} ended with code {code}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def with_overrides(base: configs.Config, overrides: Sequence[str]) -> configs.Config:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(configs.to_toml(base))
        file.flush()
        return configs.load(file.name, list(overrides))


def train_all(
    lab: Lab,
    base: configs.Config,
    variants: Mapping[str, Sequence[str]],
    seeds: int,
    out: Path,
) -> dict[str, list[Run]]:
    """Every method from every seed, seeds outermost, so that a machine that drifts does so for all alike."""
    found: dict[str, list[Run]] = {name: [] for name in variants}
    for seed in range(seeds):
        byte_s = 0.0
        for name, overrides in variants.items():
            folder = out / f"{seed}-{re.sub('[^a-z0-9]+', '-', name.lower())}"
            print(f"\nseed {seed}, {name}", flush=True)
            lines = train(lab, with_overrides(base, [*overrides, f"run.seed={seed}"]), folder)
            if name == BASE:
                byte_s = layer_0_s(folder)
            found[name].append(run_of(lines, byte_s * _seed(lines)["setup_bytes"]))
    return found


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample deviation; None where there are too few."""
    return {
        "mean": statistics.mean(values) if values else None,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
    }


def reached(runs: Sequence[Run], base: Sequence[Run], tolerance: float) -> dict[str, Any]:
    """What it took to come within ``tolerance`` of the base's best validation, seed by seed; None: never.

    Means are of methods that get there from every seed.
    ``x_seconds``, ``x_bytes``: how many times less than the base took, from the same seed; ``x_seconds_costs_known``:
    without the seconds in which the network was measured.
    """
    each: list[dict[str, float] | None] = []
    for run, other in zip(runs, base, strict=True):
        target = max(other.curve.val) - tolerance
        mine, theirs = run.curve.first_within(target), other.curve.first_within(target)
        assert theirs is not None, "the base reaches its own best"
        each.append(
            None
            if mine is None
            else {
                "epochs": run.curve.epochs[mine],
                "seconds": run.curve.seconds[mine],
                "num_bytes": run.curve.num_bytes[mine],
                "x_seconds": other.curve.seconds[theirs] / run.curve.seconds[mine],
                "x_seconds_costs_known": other.curve.seconds[theirs] / (run.curve.seconds[mine] - run.calibrate_s),
                "x_bytes": other.curve.num_bytes[theirs] / run.curve.num_bytes[mine],
            }
        )
    there = [one for one in each if one is not None]
    keys = ("epochs", "seconds", "num_bytes", "x_seconds", "x_seconds_costs_known", "x_bytes")
    complete = there if len(there) == len(runs) else []  # the mean of those that get there would praise the others
    over_seeds = {key: spread([one[key] for one in complete]) for key in keys}
    return {"tolerance": tolerance, "seeds": each, "reached": len(there)} | over_seeds


def told(runs: Sequence[Run], base: Sequence[Run]) -> dict[str, Any]:
    """One method over all seeds, for the file and the tables."""
    keys = ("test", "epoch_s", "train_bytes", "calibrate_s", "held_up_share", "held_up_share_at_paper_period")
    over_seeds = {key: spread([getattr(run, key) for run in runs]) for key in keys}
    return over_seeds | {"reached": [reached(runs, base, tolerance) for tolerance in TOLERANCES]}


def plus_minus(value: Mapping[str, float | None], text: Callable[[float], str]) -> str:
    """'mean +- deviation', each by ``text``; '-' where there is no mean."""
    if value["mean"] is None:
        return "-"
    return text(value["mean"]) + ("" if value["deviation"] is None else f" +- {text(value['deviation'])}")


def tables(methods_told: Mapping[str, dict[str, Any]], seeds: int) -> str:
    """A table of the runs, and one for each tolerance."""

    def points(share: float) -> str:
        return f"{100 * share:.2f}"

    def times(factor: float) -> str:
        return f"{factor:.2f}"

    rows = [
        [
            name, plus_minus(one["test"], points), plus_minus(one["epoch_s"], report.seconds),
            report.num_bytes(one["train_bytes"]["mean"]),
            *(
                [f"{100 * one[key]['mean']:.2f} %" for key in ("held_up_share", "held_up_share_at_paper_period")]
                + [report.seconds(one["calibrate_s"]["mean"])]
                if one["calibrate_s"]["mean"] else ["-", "-", "-"]
            ),
        ]
        for name, one in methods_told.items()
    ]  # fmt: skip
    head = ["method", "test, %", "epoch", "rows an epoch", "held up", f"at period {PAPER_PERIOD}", "calibration"]
    goal = f"goal {report.percent(GOAL_SHARE)} at the papers' periods, of which {PAPER_PERIOD} is the shortest"
    parts = [f"{report.table(rows, head)}\nheld up: share of training for which assignments did so; {goal}"]
    for place, tolerance in enumerate(TOLERANCES):
        rows = []
        for name, one in methods_told.items():
            at = one["reached"][place]
            row = [plus_minus(at["epochs"], lambda value: f"{value:.1f}"), plus_minus(at["seconds"], report.seconds),
                   plus_minus(at["x_seconds"], times), plus_minus(at["x_seconds_costs_known"], times),
                   plus_minus(at["num_bytes"], report.num_bytes), plus_minus(at["x_bytes"], times)]  # fmt: skip
            rows.append([name, f"{at['reached']} of {seeds}", *row])
        parts.append(
            f"validation reaches the best of {BASE}, same seed, less {points(tolerance)} %-points\n"
            + report.table(
                rows, ["method", "reached", "epochs", "seconds", "x less", "costs known", "rows sent", "x less"]
            )
        )
    return "\n\n".join(parts)


def for_picture(graph: str, kind: str, found: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    best = statistics.mean(max(run.curve.val) for run in found[BASE])
    return {
        "title": f"{graph}, {kind}",
        "targets": {f"papers'\nbest - {100 * tolerance:g}": best - tolerance for tolerance in TOLERANCES},
        "methods": {name: [asdict(run.curve) for run in runs] for name, runs in found.items()},
    }


def compare_all(args: argparse.Namespace, out: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every graph with every kind, printed: for the file, for the picture."""
    variants = methods(args.period, args.lead)
    length = [f"train.epochs={args.epochs}", f"train.eval_every={args.eval_every}", f"run.timeout_s={PATIENCE_S}"]
    for overrides in variants.values():
        overrides += length
        with_overrides(configs.Config(), overrides)  # a bad option is refused before the network is up
    with networks()[args.network].running() as lab:
        for graph, kind in itertools.product(args.graphs, args.kinds):
            base = configuration(graph, kind, "exact")
            at = out / f"{args.network}-{graph}-{kind}"
            found = train_all(lab, base, variants, args.seeds, at)
            over_seeds = {name: told(runs, found[BASE]) for name, runs in found.items()}
            print(
                f"\n{graph}, {kind}, {args.seeds} seeds, {lab.hosts} hosts, pairs {args.network}, {args.epochs} epochs"
            )
            print(tables(over_seeds, args.seeds), flush=True)
            each = {name: one | {"runs": [asdict(run) for run in found[name]]} for name, one in over_seeds.items()}
            yield {"graph": graph, "kind": kind, "methods": each}, for_picture(graph, kind, found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("alike", "unequal"), default="alike", help="those of bench.fidelity")
    parser.add_argument("--graphs", nargs="+", default=["coauthor_physics"])
    parser.add_argument("--kinds", nargs="+", choices=("gcn", "sage", "gat"), default=["gcn"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=2, help="epochs between evaluations")
    parser.add_argument("--period", type=int, default=20, help="epochs between assignments of widths, and draws")
    parser.add_argument("--lead", type=int, default=configs.Method().lead, help="epochs that a choice may take")
    parser.add_argument("--runs", metavar="FOLDER", type=Path, help="keep the run folders there, and use what is there")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds: 2 or more, or there is no deviation")
    try:
        with tempfile.TemporaryDirectory() as temporary:
            results, drawn = map(list, zip(*compare_all(args, args.runs or Path(temporary)), strict=True))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    name = "curves" if args.network == "alike" else f"curves-{args.network}"
    setting = {key: getattr(args, key) for key in ("network", "seeds", "epochs", "eval_every", "period", "lead")}
    goal = {"held_up_share_at_paper_period": GOAL_SHARE, "paper_period": PAPER_PERIOD}
    print(file_result(name, setting | {"goal": goal, "results": results}))
    learning(RESULTS / f"{name}.png", drawn)  # last: without matplotlib it says so, and nothing is lost
    return 0


if __name__ == "__main__":
    sys.exit(main())
