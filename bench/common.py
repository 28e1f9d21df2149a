"""What every bench shares: the machine it ran on, and filed results."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from toolkit import report
from toolkit.train.recorder import PACKAGES, processor, version_of

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Hardware, versions and date: a figure without them says nothing."""
    return {
        "date": date.today().isoformat(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
    }


def file_result(name: str, result: dict[str, Any]) -> Path:
    """Write bench/results/<name>.json, replacing the last one."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"bench": name, "machine": machine(), **result}, indent=1) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure and what it should be: at most ``goal``, or at least where more is better."""

    what: str
    value: float
    goal: float
    more_is_better: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.more_is_better else self.value <= self.goal


def goals_table(goals: Sequence[Goal]) -> str:
    """Every goal, what was measured, and whether that is enough."""
    rows = [
        [g.what, f"{g.value:,.4g}", f"{'>=' if g.more_is_better else '<='} {g.goal:,.4g}", "met" if g.met else "missed"]
        for g in goals
    ]
    return report.table(rows, ["goal", "measured", "wanted", ""])


def plain_goals(goals: Sequence[Goal]) -> list[dict[str, Any]]:
    """The same for the file."""
    return [asdict(goal) | {"met": goal.met} for goal in goals]
