"""What every bench shares: the machine it ran on, and filed results."""

from __future__ import annotations

import json
import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

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
