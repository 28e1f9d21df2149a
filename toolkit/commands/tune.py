"""`bitring tune`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.assignment import Point, knee, tune
from simulator.epoch import simulate, variance_bound, with_bits
from simulator.machine import Machine
from simulator.policy import ProblemError, SolverError
from simulator.tuning import Period, Rule, TuningError, hidden_s, periods, pick, shortest
from simulator.workload import Workload
from toolkit import config as configs
from toolkit import report
from toolkit.commands.offline import costs_of, read_both, wire_of
from toolkit.errors import UserError

HEADER = [
    "", "lambda", "group", "period", "epoch", "assigning", "waited for", "rows sent", "mean bits", "variance",
    "solved in",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The points of a grid, each with its periods, and the one that the rule takes."""

    points: list[Point]
    periods: list[list[Period]]
    best: Point
    policy: str

    @property
    def period(self) -> Period:
        """The best point's."""
        return shortest(self.periods[self.points.index(self.best)])


def run(args: argparse.Namespace) -> int:
    if args.lambdas < 2:
        raise UserError(f"--lambdas is {args.lambdas}; give a number >= 2")
    if min(args.periods) < 1 or args.lead < 0:
        raise UserError(f"--periods {min(args.periods)} and --lead {args.lead}; give periods >= 1 and a lead >= 0")
    if args.real:
        from toolkit.commands import tune_real

        return tune_real.run(args)
    if args.ranks is not None or args.set:
        raise UserError("-np and --set go with --real; a recorded run has its own")
    if args.workload is None or args.machine is None:
        raise UserError("give WORKLOAD and --machine FILE, or --real CONFIG.toml -np N to record one first")
    recorded, found = read_both(Path(args.workload), args.machine)
    base = _base_of(Path(args.workload)) if args.write else None
    tuned = tune_workload(recorded, found, args)
    if args.json:
        print(json.dumps(plain(tuned), indent=1))
    else:
        print(describe(tuned, recorded, found, args))
    if base is not None:
        write(chosen_config(base, tuned.best, tuned.period.epochs, tuned.policy, args.lead), Path(args.write))
    return 0


def rule_of(args: argparse.Namespace) -> tuple[Rule, float]:
    """What the command line chooses by, and its limit."""
    if args.within_seconds is not None:
        return "within_seconds", args.within_seconds
    if args.within_variance is not None:
        return "within_variance", args.within_variance
    return ("hidden", 0.0) if args.hidden else ("knee", 0.0)


def policy_of(args: argparse.Namespace) -> str:
    """``auto``: what is right for how the ring goes; in training ``auto`` simulates the ring (assignment.choose)."""
    if args.policy != "auto":
        return str(args.policy)
    return "posted" if args.semantics == "posted" else "adaptive"


def tune_workload(recorded: Workload, found: Machine, args: argparse.Namespace) -> Tuned:
    """The grid, evaluated, and the choice of the rule."""
    costs, wire, policy = costs_of(found), wire_of(found, args), policy_of(args)
    try:
        points = tune(
            recorded,
            costs,
            wire.network,
            lambdas=np.linspace(0, 1, args.lambdas).tolist(),
            group_sizes=args.group_sizes,
            semantics=wire.semantics,
            links=wire.links,
            at_once=policy == "posted",
            hidden_s=hidden_s(recorded),
        )
        best = pick(points, *rule_of(args))
    except (ProblemError, SolverError, TuningError) as error:
        raise UserError(str(error)) from None
    each = [periods(recorded, costs, point, args.periods, args.lead) for point in points]
    return Tuned(points=points, periods=each, best=best, policy=policy)


def chosen_config(base: configs.Config, point: Point, period: int, policy: str, lead: int) -> configs.Config:
    """``base`` with adaptive widths as chosen. UserError where they don't go with it."""
    method = dataclasses.replace(
        base.method,
        name="adaqp" if base.method.overlap else "adaqp-q",
        codec="quantised",
        widths="adaptive",
        policy=policy,
        lam=point.lam,
        group_size=point.group_size,
        period=period,
        lead=lead,
    )
    return dataclasses.replace(base, method=method)


def write(config: configs.Config, path: Path) -> None:
    """A configuration that `bitring train` takes."""
    try:
        path.write_text(configs.to_toml(config), encoding="utf-8")
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}; name another file with --write") from None


def _base_of(path: Path) -> configs.Config:
    """The configuration that a workload was recorded with."""
    beside = (path if path.is_dir() else path.parent) / "config.toml"
    if not beside.is_file():
        raise UserError(f"--write needs the run's own config.toml, and there is no {beside}; name a run folder")
    return configs.load(beside)


def describe(tuned: Tuned, recorded: Workload, found: Machine, args: argparse.Namespace) -> str:
    """The front, fixed widths beside it, and what was chosen."""
    paired = sorted(zip(tuned.points, tuned.periods, strict=True), key=lambda both: both[0].epoch.epoch_s)
    rows = [_row(point, shortest(each), tuned.best) for point, each in paired if point.on_front or point is tuned.best]
    wire = wire_of(found, args)
    for bits in (2, 4, 8, 32):
        fixed = with_bits(recorded, bits)
        epoch = simulate(fixed, wire.network, semantics=wire.semantics, links=wire.links)
        seconds, waited, sent = report.seconds(epoch.epoch_s), report.seconds(epoch.waiting_s), epoch.num_bytes
        rows.append(
            ["", f"fixed {bits}", "-", "-", seconds, "-", waited, report.num_bytes(sent), str(bits),
             f"{variance_bound(fixed):.3g}", "-"]
        )  # fmt: skip
    best, period, (rule, _) = tuned.best, tuned.period, rule_of(args)
    return (
        f"The front over lambda and group size by {tuned.policy}, with the period of each (* the choice: "
        f"{rule.replace('_', ' ')}), and fixed widths beside it:\n"
        + report.table(rows, HEADER)
        + f"\n\nmethod.lam = {best.lam:g}, method.group_size = {best.group_size}, method.period = {period.epochs}: "
        f"an epoch of {report.seconds(period.epoch_s)}, {report.percent(period.share)} of it for assignments"
    )


def _row(point: Point, period: Period, best: Point) -> list[str]:
    return [
        "*" if point is best else "",
        f"{point.lam:.2f}",
        str(point.group_size),
        str(period.epochs),
        report.seconds(period.epoch_s),
        report.percent(period.share),
        report.seconds(point.epoch.waiting_s),
        report.num_bytes(point.epoch.num_bytes),
        f"{point.bits:.2f}",
        f"{point.variance:.3g}",
        report.seconds(point.solve_s),
    ]


def plain(tuned: Tuned) -> list[dict[str, object]]:
    """Every point, for programs."""
    front_knee = knee(tuned.points)
    return [
        {
            "lambda": point.lam,
            "group_size": point.group_size,
            "policy": tuned.policy,
            "epoch_s": point.epoch.epoch_s,
            "waiting_s": point.epoch.waiting_s,
            "num_bytes": point.epoch.num_bytes,
            "mean_bits": point.bits,
            "variance_bound": point.variance,
            "solve_s": point.solve_s,
            "on_front": point.on_front,
            "knee": point is front_knee,
            "chosen": point is tuned.best,
            "periods": _plain_periods(each),
        }
        for point, each in zip(tuned.points, tuned.periods, strict=True)
    ]


def _plain_periods(found: Sequence[Period]) -> list[dict[str, object]]:
    taken = shortest(found)
    return [
        {"epochs": p.epochs, "held_up_s": p.held_up_s, "epoch_s": p.epoch_s, "share": p.share, "chosen": p is taken}
        for p in found
    ]
