"""The same tests at any number of ranks: ``mpirun -np N python -m mpi4py -m pytest tests/mpi``.

A test passes where it passes on every rank. Rank 0 speaks; another rank speaks up when it fails.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator
from pathlib import Path

import pytest

from toolkit.comm.world import MpiWorld

WORLD = MpiWorld()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if WORLD.rank != 0:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    error: BaseException | None = None
    result: object = None
    try:
        result = yield
    except BaseException as caught:
        error = caught
    failed = error is not None and not isinstance(error, pytest.skip.Exception)
    if failed:
        sys.stderr.write(f"rank {WORLD.rank} of {WORLD.size}: {pyfuncitem.nodeid}\n")
        traceback.print_exception(error)
        sys.stderr.flush()
    others = [rank for rank, bad in enumerate(WORLD.comm.allgather(failed)) if bad]
    if error is not None:
        raise error
    if others:
        pytest.fail(f"failed on ranks {others}")
    return result


@pytest.fixture(scope="session")
def world() -> MpiWorld:
    return WORLD


@pytest.fixture
def shared_tmp(tmp_path: Path) -> Path:
    """One folder for all ranks."""
    return WORLD.broadcast(tmp_path)


def need_horovod() -> None:
    """Skip where Horovod is not installed; fail where it was asked for (BITRING_HOROVOD=require)."""
    from toolkit.comm import horovod

    if not horovod.installed():
        if os.environ.get("BITRING_HOROVOD") == "require":
            pytest.fail("Horovod was asked for (BITRING_HOROVOD=require) and is not installed")
        pytest.skip("Horovod is not installed; `make setup` builds it")


@pytest.fixture
def horovod_installed() -> None:
    need_horovod()
