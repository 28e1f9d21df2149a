"""What `bitring doctor` and `bitring check` run in processes of their own, so that a crash there is a line here.

    python -m toolkit.selfcheck NAME ...       one JSON line per name: name, state, detail
    python -m toolkit.selfcheck --ranks FILE   the same as a rank of an MPI job, rank 0 writes to FILE

State is "ok", "missing" (not installed) or "FAILED" (installed, and does not work).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator.programs import find_glpsol

RANK_CHECKS = ("mpi ring", "mpi allreduce", "horovod allreduce", "horovod alltoall")
RING_BYTES = 1 << 20  # far above the eager limit: the rendezvous path is the one that breaks in containers


def run_task(name: str) -> dict[str, str]:
    """One named task; its exception becomes a state and a reason."""
    try:
        return _record(name, "ok", TASKS[name]())
    except ModuleNotFoundError as error:
        return _record(name, "missing", str(error))
    except Exception as error:
        return _record(name, "FAILED", _reason(error))


def run_ranks(path: Path) -> None:
    """The checks that need ranks, in order; the first failure ends the job, as the ranks are out of step then."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    checks: dict[str, Callable[[], str]] = {
        "mpi ring": lambda: _mpi_ring(world),
        "mpi allreduce": lambda: _mpi_allreduce(world),
    }
    if is_installed("horovod"):
        checks |= {"horovod allreduce": _horovod_allreduce, "horovod alltoall": _horovod_alltoall}
    for name, check in checks.items():
        start = time.perf_counter()
        try:
            detail = check()
        except Exception as error:
            _append(path, _record(name, "FAILED", f"rank {world.Get_rank()}: {_reason(error)}"))
            world.Abort(1)
        if world.Get_rank() == 0:
            _append(path, _record(name, "ok", f"{detail}, {time.perf_counter() - start:.2f} s"))


def _mpi_ring(world: Any) -> str:
    import numpy as np

    rank, size = world.Get_rank(), world.Get_size()
    sent = np.full(RING_BYTES, rank, dtype=np.uint8)
    received = np.empty_like(sent)
    world.Sendrecv(sent, dest=(rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
    _expect(bool((received == (rank - 1) % size).all()), "the left neighbour's bytes arrived changed")
    return f"{RING_BYTES >> 20} MiB to the right over {size} ranks"


def _mpi_allreduce(world: Any) -> str:
    import numpy as np

    size = world.Get_size()
    total = np.full(1000, world.Get_rank() + 1.0, dtype=np.float32)
    from mpi4py import MPI

    world.Allreduce(MPI.IN_PLACE, total)
    _expect(bool((total == size * (size + 1) / 2).all()), f"the sum over ranks is {total[0]}")
    return f"sum over {size} ranks"


def _horovod_allreduce() -> str:
    from mpi4py import MPI  # before Horovod: mpi4py stays the owner of MPI  # isort: skip
    import horovod.torch as hvd
    import torch

    hvd.init(comm=MPI.COMM_WORLD)
    _expect(hvd.size() == MPI.COMM_WORLD.Get_size(), f"Horovod sees {hvd.size()} ranks")
    total = hvd.allreduce(torch.full((1000,), hvd.rank() + 1.0), op=hvd.Sum, name="check")
    _expect(bool((total == hvd.size() * (hvd.size() + 1) / 2).all()), f"the sum over ranks is {total[0]}")
    return f"sum over {hvd.size()} ranks"


def _horovod_alltoall() -> str:
    import horovod.torch as hvd
    import torch

    rank, size = hvd.rank(), hvd.size()
    # rank r sends i + 1 rows to rank i, so rank r receives r + 1 rows from everybody
    splits = torch.arange(1, size + 1, dtype=torch.int32)
    rows = torch.full((int(splits.sum()), 4), float(rank))
    received, counts = hvd.alltoall(rows, splits=splits, name="check")
    _expect(counts.tolist() == [rank + 1] * size, f"rows received per rank: {counts.tolist()}")
    _expect(received[:, 0].tolist() == [float(r) for r in range(size) for _ in range(rank + 1)], "rows arrived changed")
    return f"uneven rows over {size} ranks"


def _metis() -> str:
    import numpy as np
    import pymetis

    # two cliques of four nodes joined by one edge: the cut is that edge
    cliques = [[j for j in range(base, base + 4) if j != i] for base in (0, 4) for i in range(base, base + 4)]
    cliques[0].append(4)
    cliques[4].append(0)
    offsets = np.cumsum([0, *map(len, cliques)])
    graph = pymetis.CSRAdjacency(offsets, np.concatenate(cliques))
    cut, parts = pymetis.part_graph(2, graph)
    _expect(cut == 1 and len(set(parts[:4])) == len(set(parts[4:])) == 1, f"cut {cut}, parts {list(parts)}; not 1")
    return "8 nodes in 2 parts, cut 1"


def _glpk() -> str:
    glpsol = find_glpsol()
    if glpsol is None:
        raise ModuleNotFoundError("no glpsol next to this Python or on PATH")
    from pyomo.environ import Binary, ConcreteModel, Constraint, Objective, SolverFactory, Var, maximize, value

    model = ConcreteModel()
    model.x = Var(range(3), domain=Binary)
    model.weight = Constraint(expr=3 * model.x[0] + 4 * model.x[1] + 5 * model.x[2] <= 8)
    model.worth = Objective(expr=4 * model.x[0] + 5 * model.x[1] + 6 * model.x[2], sense=maximize)
    SolverFactory("glpk", executable=glpsol).solve(model, timelimit=10)
    _expect(round(value(model.worth)) == 10, f"a knapsack worth 10 came out as {value(model.worth)}")
    return "Pyomo model of 3 binaries solved by GLPK"


def _torch() -> str:
    import torch

    return f"{torch.__version__}, {torch.get_num_threads()} threads"


def _cuda_device() -> str:
    import torch

    from toolkit import native

    if not torch.cuda.is_available():
        raise ModuleNotFoundError("torch sees no CUDA device")
    kernels = "built" if native.device_library() is not None else "not built: make cuda"
    return f"{torch.cuda.get_device_name(0)}, {torch.cuda.device_count()} in all; kernels {kernels}"


def _kernels() -> str:
    from toolkit import native

    if native.library() is None:
        raise ModuleNotFoundError("not built")
    return "built" if str(native.BUILT) == native.library_path() else native.library_path()


def _horovod() -> str:
    import horovod
    import horovod.torch as hvd

    built = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    _expect(bool(built["MPI"]), "built without MPI")
    return f"{horovod.__version__}, built with {', '.join(name for name, there in built.items() if there)}"


def _mpi4py() -> str:
    import mpi4py
    from mpi4py import MPI

    levels = {
        MPI.THREAD_SINGLE: "SINGLE",
        MPI.THREAD_FUNNELED: "FUNNELED",
        MPI.THREAD_SERIALIZED: "SERIALIZED",
        MPI.THREAD_MULTIPLE: "MULTIPLE",
    }
    library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")
    return f"{mpi4py.__version__}, {library}, THREAD_{levels[MPI.Query_thread()]}"


def _importing(module: str, attribute: str = "__version__") -> Callable[[], str]:
    def task() -> str:
        import importlib
        from importlib import metadata

        imported = importlib.import_module(module)
        return str(getattr(imported, attribute, None) or metadata.version(module.split(".")[0]))

    return task


def _metadata(distribution: str, module: str) -> Callable[[], str]:
    """Version without the import, which takes seconds for some."""

    def task() -> str:
        from importlib import metadata

        if not is_installed(module):
            raise ModuleNotFoundError(f"No module named '{module}'")
        return metadata.version(distribution)

    return task


TASKS: dict[str, Callable[[], str]] = {
    "numpy": _importing("numpy"),
    "scipy": _importing("scipy"),
    "torch": _torch,
    "kernels": _kernels,
    "cuda device": _cuda_device,
    "horovod": _horovod,
    "mpi4py": _mpi4py,
    "pymetis": _importing("pymetis", "version"),
    "pyomo": _importing("pyomo.core"),
    "highs": _metadata("highspy", "highspy"),
    "scikit-learn": _metadata("scikit-learn", "sklearn"),
    "torch-geometric": _metadata("torch-geometric", "torch_geometric"),
    "metis": _metis,
    "glpk": _glpk,
}


def is_installed(module: str) -> bool:
    """Whether the module can be found; it is not imported."""
    import importlib.util

    return importlib.util.find_spec(module) is not None


def _expect(condition: bool, sentence: str) -> None:
    if not condition:
        raise RuntimeError(sentence)


def _reason(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _record(name: str, state: str, detail: str) -> dict[str, str]:
    return {"name": name, "state": state, "detail": detail}


def _append(path: Path, record: dict[str, str]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def main(arguments: list[str]) -> None:
    """Entry point of ``python -m toolkit.selfcheck``."""
    if arguments[:1] == ["--ranks"]:
        run_ranks(Path(arguments[1]))
        return
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    for name in arguments:
        print(json.dumps(run_task(name)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
