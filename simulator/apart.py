"""A policy in a process of its own, for those that build linear or integer programs.

Pyomo builds them in Python, object by object, and a thread that does so keeps the others of its process from running,
the one that trains among them. A process takes a moment to start and leaves the caller alone.

What crosses the pipes are pickles, of this program to itself.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from simulator.assignment import Assigned, assign_workload
from simulator.cost import PairCosts
from simulator.exchanges import Budget
from simulator.maxplus import Semantics
from simulator.policy import ProblemError, SolverError
from simulator.workload import Workload

OF_RANKS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HOROVOD_")  # who has these is taken for a rank of the job
SOLVER = ["-P", "-m", "simulator.apart"]
PATIENCE_S = 300.0
NICE = 5  # where no core is free, training goes first
Told = tuple[str, Any]


def builds_programs(policy: str, semantics: Semantics, budget: Budget = "each") -> bool:
    """Whether a policy is one of those: ``auto`` where it asks the ring's linear program."""
    if policy == "auto":
        return semantics not in ("posted", "barrier") and budget == "each"
    return policy == "ring_lp" or policy.startswith(("highs", "glpk"))


def assign_apart(workload: Workload, costs: PairCosts, policy: str, **choices: Any) -> Assigned:
    """As ``assign_workload``, in a process of its own: the same answer, the same errors.

    Where a signal ends that process, the caller's own does its work. SolverError after ``PATIENCE_S``.
    """
    try:
        done = subprocess.run(
            [sys.executable, *SOLVER],
            input=pickle.dumps((workload, costs, policy, choices)),
            capture_output=True,
            env=_environment(),
            start_new_session=True,  # what ends our group has us to end, in order
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SolverError(f"the solver has not answered for {PATIENCE_S:g} s; take policy exact or hull") from None
    if done.returncode < 0:
        return assign_workload(workload, costs, policy, **choices)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        last = said[-1] if said else "it said nothing"
        raise SolverError(f"the solver's process ended with code {done.returncode}: {last}")
    kind, value = pickle.loads(done.stdout)
    if kind == "assigned":
        found: Assigned = value
        return found
    raise {"ProblemError": ProblemError, "SolverError": SolverError}[kind](value)


def _environment() -> dict[str, str]:
    """Ours, but for what makes a process a rank, and with this package in reach."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(OF_RANKS)}
    root = str(Path(__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    return env


def _answer(request: bytes) -> Told:
    workload, costs, policy, choices = pickle.loads(request)
    try:
        return "assigned", assign_workload(workload, costs, policy, **choices)
    except (ProblemError, SolverError) as error:
        return type(error).__name__, str(error)


def _end_with(parent: int) -> None:
    """Nobody waits for an answer when the caller is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Answer one request: from stdin to stdout. What a solver prints goes to stderr."""
    os.nice(NICE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        out.write(pickle.dumps(_answer(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
