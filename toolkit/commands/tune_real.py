"""`bitring tune --real`: record a run, tune offline, confirm the few best by short real runs.

Successive halving: every candidate trains for a few epochs, the better half goes on to twice as many, until one is
left. A run is judged by its seconds an epoch times (dropout's noise + the codec's) / dropout's: where the noise of the
gradients limits training, that is time for equal progress.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator import workload
from simulator.tuning import Choice, Fixed
from toolkit import config as configs
from toolkit import report
from toolkit.commands import tune
from toolkit.commands.common import check_ranks
from toolkit.commands.offline import found_machine
from toolkit.errors import UserError

FEWEST = 10  # epochs of a run: half of them at 8 bits, one for the solver, one for new layouts, the rest to measure
LEAD = 1
FLOAT32 = "method.codec=float32"
HEADER = ["", "lambda", "group", "simulated epoch", "real epoch", "off by", "noise / dropout", "judged", "epochs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One short run: median seconds of the epochs at the chosen widths, and the noise of the weight gradients."""

    epochs: int
    epoch_s: float
    codec: float
    dropout: float

    @property
    def judged_s(self) -> float:
        """Seconds for the progress of an epoch without the codec's noise; without dropout's, a plain epoch's."""
        return self.epoch_s * (1 + (self.codec / self.dropout if self.dropout else 0.0))


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A point of the front or a fixed width, and what its runs measured, rung after rung."""

    point: Choice
    runs: list[Measured]


def run(args: argparse.Namespace) -> int:
    for name, value, least in (("--candidates", args.candidates, 2), ("--epochs", args.epochs, FEWEST)):
        if value < least:
            raise UserError(f"{name} is {value}; give a number >= {least}")
    check_ranks(args.ranks)
    _starter(args)
    if not args.launch and (args.ranks or 1) < 2:
        raise UserError("one rank sends nothing, so there is nothing to tune; give -np 2 or more")
    if args.workload is not None:
        raise UserError(f"{args.workload} and --real {args.real}: --real records its own run; leave one out")
    base = configs.load(args.real, args.set)
    with tempfile.TemporaryDirectory(prefix="bitring-tune-") as folder:
        return _tune(args, base, Path(folder))


def _tune(args: argparse.Namespace, base: configs.Config, folder: Path) -> int:
    _say(f"recording {args.epochs} epochs")
    recorded_in = folder / "recorded"
    _train(args, recorded_in, ["method.policy=auto"], args.epochs)
    load = _recorded(recorded_in / "workload.npz", args)
    name = args.machine or base.method.machine or str(recorded_in / "machine.toml")
    tuned = tune.tune_workload(load, found_machine(name, load.ranks, args.real), args, base)
    policy = tuned.policy
    candidates = [Candidate(point=point, runs=[]) for point in spread(tuned.choices, tuned.best, args.candidates)]
    left, epochs, rung = candidates, args.epochs, 0
    while left:
        for number, candidate in enumerate(left):
            point = candidate.point
            _say(f"{_words(point)}: {epochs} epochs")
            candidate.runs.append(
                _measure(args, folder / f"{rung}-{number}", _keys(point, policy, tuned.budget), epochs)
            )
        if len(left) == 1:
            break
        left = sorted(left, key=lambda c: c.runs[-1].judged_s)[: (len(left) + 1) // 2]
        epochs, rung = 2 * epochs, rung + 1
    best = left[0]
    offline = next(candidate for candidate in candidates if candidate.point is tuned.best)
    behind = regret(candidates, offline)
    if args.json:
        print(json.dumps({"behind": behind, "candidates": [_plain(c, best, offline) for c in candidates]}, indent=1))
    else:
        print(describe(candidates, best, offline, behind))
    if args.write:
        tune.write(tune.chosen_config(base, tuned, best.point, args.lead), Path(args.write))
    return 0


def _words(choice: Choice) -> str:
    if isinstance(choice, Fixed):
        return f"{choice.width} bits for all"
    return f"lambda {choice.lam:g}, groups of {choice.group_size}"


def _keys(choice: Choice, policy: str, budget: str) -> list[str]:
    """What a short run is told of its widths."""
    if isinstance(choice, Fixed):
        if choice.width == 32:
            return ["method.name=vanilla", FLOAT32, "method.widths=fixed"]
        return ["method.name=fixed", "method.widths=fixed", f"method.bits={choice.width}"]
    return [
        f"method.policy={policy}",
        f"method.lam={choice.lam}",
        f"method.group_size={choice.group_size}",
        f"method.budget={budget}",
    ]


def spread(points: Sequence[Choice], best: Choice, count: int) -> list[Choice]:
    """``best`` and others evenly spaced along the front, fastest first: ``count`` where there are as many."""
    front = sorted((p for p in points if p.on_front), key=lambda p: p.epoch.epoch_s)
    places = np.unique(np.linspace(0, len(front) - 1, max(2, count - 1)).round().astype(int))
    chosen = [front[place] for place in places]
    if not any(point is best for point in chosen):
        chosen.append(best)
    others = [point for point in front if not any(point is one for one in chosen)]
    chosen += others[: max(0, count - len(chosen))]
    return sorted(chosen, key=lambda p: p.epoch.epoch_s)


def regret(candidates: Sequence[Candidate], offline: Candidate) -> float:
    """By which share the offline choice is judged worse than the best, where both were last measured alike."""
    rung = len(offline.runs) - 1
    least = min(c.runs[rung].judged_s for c in candidates if len(c.runs) > rung)
    return offline.runs[rung].judged_s / least - 1


def _measure(args: argparse.Namespace, folder: Path, keys: list[str], epochs: int) -> Measured:
    noise = [] if FLOAT32 in keys else [f"train.noise_every={epochs}"]  # float32 adds none, and training says so
    _train(args, folder, [*keys, *noise], epochs)
    return measured_of((folder / "metrics.jsonl").read_text(encoding="utf-8"))


def measured_of(metrics: str) -> Measured:
    """From the lines of a run's metrics.jsonl."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in metrics.splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    # without adaptive widths nothing switches: the latter half, as long as the others are measured
    fixed = epochs[(len(epochs) - 1) // 2]["epoch"]
    switch = next((line["epoch"] for line in lines if line["kind"] == "assignment"), fixed)
    layers = (layer for line in lines if line["kind"] == "noise" for layer in line["layers"])
    every = next((layer for layer in layers if layer["layer"] == -1), {"codec": 0.0, "dropout": 0.0})  # of float32
    # the epoch after the switch makes new layouts
    seconds = [line["epoch_s"] for line in epochs if line["epoch"] > switch + 1]
    return Measured(
        epochs=len(epochs), epoch_s=float(np.median(seconds)), codec=every["codec"], dropout=every["dropout"]
    )


def _train(args: argparse.Namespace, folder: Path, keys: list[str], epochs: int) -> None:
    """A run with adaptive widths, chosen after half of its epochs."""
    given = [*args.set, "method.codec=quantised", "method.widths=adaptive", f"method.lead={LEAD}", *keys]  # last rules
    given += [
        f"train.epochs={epochs}",
        f"train.eval_every={epochs}",
        "train.patience=0",
        f"method.period={epochs // 2}",
    ]
    before, after = _starter(args)
    command = [*before, sys.executable, "-m", "toolkit.cli", "train", args.real, *after, "--run-dir", str(folder)]
    for key in given:
        command += ["--set", key]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        own = [line for line in said if line.startswith("bitring")]  # mpirun says something after it
        last = (own or said or ["it said nothing"])[-1]
        raise UserError(f"a short run ended with code {done.returncode}: {last}")


def _recorded(path: Path, args: argparse.Namespace) -> workload.Workload:
    """The recorded run's workload. UserError where --launch started one rank, or none here."""
    if not path.is_file():
        raise UserError(f"no rank has left {path.name} in {path.parent}: --launch must put rank 0 on this host")
    load = workload.load(path)
    if load.ranks < 2:
        raise UserError(f"--launch {args.launch!r} starts one rank, which sends nothing; give a command for 2 or more")
    return load


def _starter(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The words before and after ours that start the ranks of a job."""
    if not args.launch:
        return [], ["-np", str(args.ranks)]
    try:
        words = shlex.split(args.launch)
    except ValueError as error:
        raise UserError(f"--launch {args.launch!r}: {error}; quote it as a shell would") from None
    if not words or shutil.which(words[0]) is None:
        raise UserError(f"--launch {args.launch!r}: there is no program {words[0] if words else ''!r}; name mpirun")
    return words, []


def describe(candidates: Sequence[Candidate], best: Candidate, offline: Candidate, behind: float) -> str:
    """Every candidate, simulated beside real."""
    rows = []
    for one in candidates:
        last, simulated = one.runs[-1], one.point.epoch.epoch_s
        rows.append(
            [
                ("*" if one is best else "") + ("o" if one is offline else ""),
                f"fixed {one.point.width}" if isinstance(one.point, Fixed) else f"{one.point.lam:.2f}",
                "-" if isinstance(one.point, Fixed) else str(one.point.group_size),
                report.seconds(simulated),
                report.seconds(last.epoch_s),
                f"{100 * (simulated / last.epoch_s - 1):+.1f} %",
                f"{last.codec / last.dropout:.4f}" if last.dropout else "-",
                report.seconds(last.judged_s),
                str(last.epochs),
            ]
        )
    return (
        "Candidates of the front in short real runs (* the best, o the offline choice; judged: seconds an epoch times "
        "what noise adds to dropout's):\n" + report.table(rows, HEADER) + "\n\n"
        f"the offline choice is {report.percent(behind)} behind the best real one of its rung"
    )


def _plain(one: Candidate, best: Candidate, offline: Candidate) -> dict[str, Any]:
    runs = [
        {"epochs": r.epochs, "epoch_s": r.epoch_s, "codec": r.codec, "dropout": r.dropout, "judged_s": r.judged_s}
        for r in one.runs
    ]
    return tune.named(one.point) | {
        "simulated_epoch_s": one.point.epoch.epoch_s,
        "variance_bound": one.point.variance,
        "best": one is best,
        "offline_choice": one is offline,
        "runs": runs,
    }


def _say(text: str) -> None:
    print(f"tune: {text}", file=sys.stderr, flush=True)
