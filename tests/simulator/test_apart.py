"""A policy in a process of its own: the same answer, the same errors."""

import os

import numpy as np
import pytest

from simulator import apart
from simulator.apart import assign_apart, builds_programs
from simulator.assignment import assign_workload
from simulator.policy import ProblemError, SolverError
from tests.simulator.test_epoch import costs, workload


@pytest.mark.parametrize(("policy", "semantics"), [("adaptive", "posted"), ("auto", "rendezvous")])
def test_the_same_answer(policy, semantics):
    if policy == "auto":
        pytest.importorskip("highspy")
    load, network, choices = workload(3), costs(3), {"lam": 0.4, "group_size": 5, "semantics": semantics, "key": 7}
    here, there = (assign(load, network, policy, **choices) for assign in (assign_workload, assign_apart))
    assert here.policy == there.policy and here.predicted_s == there.predicted_s and here.variance == there.variance
    for one, two in zip(here.workload.exchanges, there.workload.exchanges, strict=True):
        assert np.array_equal(one.bits, two.bits)


def test_the_same_refusals(monkeypatch):
    with pytest.raises(ProblemError, match="there is no policy 'best'"):
        assign_apart(workload(2), costs(2), "best")
    monkeypatch.setattr(apart.sys, "executable", "/bin/false")
    with pytest.raises(SolverError, match="ended with code 1: it said nothing"):
        assign_apart(workload(2), costs(2), "adaptive")


def test_a_killed_process_costs_nothing_but_time(monkeypatch):
    load, network = workload(3), costs(3)
    here = assign_workload(load, network, "adaptive", lam=0.4)
    monkeypatch.setattr(apart, "SOLVER", ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
    killed = assign_apart(load, network, "adaptive", lam=0.4)
    assert killed.variance == here.variance


def test_a_stopped_process_holds_nobody_up_for_ever(monkeypatch):
    monkeypatch.setattr(apart, "SOLVER", ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    monkeypatch.setattr(apart, "PATIENCE_S", 0.5)
    with pytest.raises(SolverError, match=r"has not answered for 0.5 s; take policy exact or hull"):
        assign_apart(workload(2), costs(2), "adaptive")


def test_its_process_is_no_rank(monkeypatch):
    """Signals that go to the ranks of a job don't reach it, and it starts no MPI."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setenv("BITRING_KEPT", "1")
    env = apart._environment()
    assert env["BITRING_KEPT"] == "1" and not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"} & set(env)
    assert os.environ["OMPI_COMM_WORLD_RANK"] == "0"


def test_which_policies_go_there():
    assert all(builds_programs(policy, "posted") for policy in ("ring_lp", "highs", "glpk-paper"))
    assert not any(builds_programs(policy, "rendezvous") for policy in ("adaptive", "posted", "exact", "random"))
    assert [builds_programs("auto", ring) for ring in ("posted", "barrier", "eager", "rendezvous")] == [
        False, False, True, True
    ]  # fmt: skip
