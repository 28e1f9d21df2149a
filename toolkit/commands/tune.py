"""`bitring tune`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.assignment import Point, knee, marked, tune
from simulator.exchanges import Budget
from simulator.machine import Machine
from simulator.policy import ProblemError, SolverError
from simulator.tuning import (
    WORTH,
    Choice,
    Fixed,
    Period,
    Rule,
    TuningError,
    fixed,
    gain,
    hidden_s,
    nothing_to_gain,
    periods,
    pick,
    shortest,
)
from simulator.workload import Workload
from toolkit import config as configs
from toolkit import report
from toolkit.commands.offline import costs_of, read_both, wire_of, without_machine
from toolkit.errors import UserError

HEADER = [
    "", "lambda", "group", "period", "epoch", "assigning", "waited for", "rows sent", "mean bits", "variance",
    "solved in",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Points of a grid and fixed widths, marked together; every one's periods; and the one that the rule takes."""

    choices: list[Choice]
    periods: list[list[Period]]  # none of a fixed width
    best: Choice
    policy: str
    budget: Budget = "each"

    def period_of(self, choice: Choice) -> Period | None:
        """The shortest that is cheap enough; None: a fixed width is not assigned."""
        found = self.periods[next(i for i, one in enumerate(self.choices) if one is choice)]
        return shortest(found) if found else None


def run(args: argparse.Namespace) -> int:
    if args.lambdas < 2:
        raise UserError(f"--lambdas is {args.lambdas}; give a number >= 2")
    if min(args.periods) < 1 or args.lead < 0:
        raise UserError(f"--periods {min(args.periods)} and --lead {args.lead}; give periods >= 1 and a lead >= 0")
    if args.real:
        from toolkit.commands import tune_real

        return tune_real.run(args)
    if args.ranks is not None or args.launch or args.set:
        raise UserError("-np, --launch and --set go with --real; a recorded run has its own")
    if args.workload is None:
        raise UserError("give WORKLOAD and --machine FILE, or --real CONFIG.toml -np N to record one first")
    if args.machine is None:
        raise UserError(without_machine(args.workload))
    recorded, found = read_both(Path(args.workload), args.machine)
    base = _base_of(Path(args.workload), needed=bool(args.write))
    tuned = tune_workload(recorded, found, args, base)
    if args.json:
        print(json.dumps(plain(tuned), indent=1))
    else:
        print(describe(tuned, args))
    if base is not None and args.write:
        write(chosen_config(base, tuned, tuned.best, args.lead), Path(args.write))
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


def tune_workload(recorded: Workload, found: Machine, args: argparse.Namespace, base: configs.Config | None) -> Tuned:
    """The grid, evaluated, and the choice of the rule. ``base``: of the run, whose budget holds where none is given."""
    budget = args.budget or (base.method.budget if base is not None else "each")
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
            policy=policy,
            hidden_s=hidden_s(recorded),
            budget=budget,
        )
        choices: list[Choice] = marked([*points, *fixed(recorded, wire)])
        best = pick(choices, *rule_of(args))
    except (ProblemError, SolverError, TuningError) as error:
        raise UserError(str(error)) from None
    each = [periods(recorded, costs, one, args.periods, args.lead) if isinstance(one, Point) else [] for one in choices]
    return Tuned(choices=choices, periods=each, best=best, policy=policy, budget=budget)


def chosen_config(base: configs.Config, tuned: Tuned, choice: Choice, lead: int) -> configs.Config:
    """``base`` with the widths of a choice. UserError where they don't go with it."""
    if isinstance(choice, Fixed):
        return dataclasses.replace(base, method=_fixed_method(base.method, choice.width))
    period = tuned.period_of(choice)
    assert period is not None
    method = dataclasses.replace(
        base.method,
        name="adaqp" if base.method.overlap else "adaqp-q",
        codec="quantised",
        widths="adaptive",
        policy=tuned.policy,
        lam=choice.lam,
        group_size=choice.group_size,
        budget=tuned.budget,
        period=period.epochs,
        lead=lead,
    )
    return dataclasses.replace(base, method=method)


def _fixed_method(method: configs.Method, width: int) -> configs.Method:
    """Without the keys of adaptive widths; 32 bits are vanilla."""
    plain = configs.Method()
    only_adaptive = ("policy", "lam", "group_size", "budget", "period", "lead")
    changes: dict[str, Any] = {key: getattr(plain, key) for key in only_adaptive} | {"widths": "fixed"}
    if width == 32:
        changes |= {"name": "vanilla", "codec": "float32", "bits": plain.bits, "quantise_all": False}
    else:
        changes |= {"name": "fixed", "codec": "quantised", "bits": width}
    return dataclasses.replace(method, **changes)


def write(config: configs.Config, path: Path) -> None:
    """A configuration that `bitring train` takes."""
    try:
        path.write_text(configs.to_toml(config), encoding="utf-8")
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}; name another file with --write") from None


def _base_of(path: Path, *, needed: bool) -> configs.Config | None:
    """The configuration that a workload was recorded with. UserError where there is none and it is needed."""
    beside = (path if path.is_dir() else path.parent) / "config.toml"
    if not beside.is_file():
        if not needed:
            return None
        raise UserError(f"--write needs the run's own config.toml, and there is no {beside}; name a run folder")
    return configs.load(beside)


def describe(tuned: Tuned, args: argparse.Namespace) -> str:
    """The front, fixed widths beside it, and what was chosen."""
    best, (rule, _) = tuned.best, rule_of(args)
    shown = [
        (one, tuned.period_of(one)) for one in tuned.choices if isinstance(one, Fixed) or one.on_front or one is best
    ]
    points = sorted((both for both in shown if isinstance(both[0], Point)), key=lambda both: both[0].epoch.epoch_s)
    rows = [_row(one, period, one is best) for one, period in points]
    rows += [_row(one, period, one is best) for one, period in shown if isinstance(one, Fixed)]
    return (
        f"The front of lambda and group size by {tuned.policy}, with the period of each, and fixed widths, all judged "
        f"together (* the choice: {rule.replace('_', ' ')}):\n" + report.table(rows, HEADER) + "\n\n" + told(tuned)
    )


def told(tuned: Tuned) -> str:
    """The choice in a sentence."""
    best, saved = tuned.best, gain(tuned.best, tuned.choices)
    epoch = f"an epoch of {report.seconds(best.epoch.epoch_s)}, {report.percent(saved)} shorter than float32's"
    if isinstance(best, Point):
        period = tuned.period_of(best)
        assert period is not None
        return (
            f"method.lam = {best.lam:g}, method.group_size = {best.group_size}, method.period = {period.epochs}: "
            f"{epoch}, {report.percent(period.share)} more of it for assignments"
        )
    if best.width < 32:
        return f'method.name = "fixed", method.bits = {best.width}: {epoch}'
    if nothing_to_gain(tuned.choices):
        most = max(gain(one, tuned.choices) for one in tuned.choices)
        return (
            f'nothing to gain here: float32 stays (method.name = "vanilla"); the fastest choice saves '
            f"{report.percent(most)} of its epoch, less than {report.percent(WORTH)}"
        )
    return f'method.name = "vanilla": an epoch of {report.seconds(best.epoch.epoch_s)} in float32'


def _row(one: Choice, period: Period | None, is_best: bool) -> list[str]:
    widths = [f"fixed {one.width}", "-"] if isinstance(one, Fixed) else [f"{one.lam:.2f}", str(one.group_size)]
    return [
        "*" if is_best else "",
        *widths,
        str(period.epochs) if period else "-",
        report.seconds(period.epoch_s if period else one.epoch.epoch_s),
        report.percent(period.share) if period else "-",
        report.seconds(one.epoch.waiting_s),
        report.num_bytes(one.epoch.num_bytes),
        str(one.width) if isinstance(one, Fixed) else f"{one.bits:.2f}",
        f"{one.variance:.3g}",
        "-" if isinstance(one, Fixed) else report.seconds(one.solve_s),
    ]


def plain(tuned: Tuned) -> list[dict[str, object]]:
    """Every point and fixed width, for programs."""
    front_knee = knee(tuned.choices)
    return [
        named(one)
        | {
            "policy": "fixed" if isinstance(one, Fixed) else tuned.policy,
            "epoch_s": one.epoch.epoch_s,
            "waiting_s": one.epoch.waiting_s,
            "num_bytes": one.epoch.num_bytes,
            "mean_bits": float(one.width) if isinstance(one, Fixed) else one.bits,
            "variance_bound": one.variance,
            "solve_s": 0.0 if isinstance(one, Fixed) else one.solve_s,
            "on_front": one.on_front,
            "knee": one is front_knee,
            "chosen": one is tuned.best,
            "periods": _plain_periods(each),
        }
        for one, each in zip(tuned.choices, tuned.periods, strict=True)
    ]


def named(one: Choice) -> dict[str, object]:
    """What tells a choice from the others, for programs."""
    if isinstance(one, Fixed):
        return {"lambda": None, "group_size": None, "bits": one.width}
    return {"lambda": one.lam, "group_size": one.group_size, "bits": None}


def _plain_periods(found: Sequence[Period]) -> list[dict[str, object]]:
    taken = shortest(found) if found else None
    return [
        {"epochs": p.epochs, "held_up_s": p.held_up_s, "epoch_s": p.epoch_s, "share": p.share, "chosen": p is taken}
        for p in found
    ]
