"""Weight gradients: one flat mpi4py Allreduce against Horovod, in one operation and tensor by tensor, by size.

    mpirun -np 4 python -m mpi4py -m bench.reduction

Alternating repeats in one run; medians. This is where HOROVOD_FROM_BYTES of toolkit/comm/reduce.py comes from.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bench.common import file_result
from toolkit import report
from toolkit.comm.horovod import start
from toolkit.comm.reduce import FlatSum, GradientSum, HorovodGrouped
from toolkit.comm.world import MpiWorld
from toolkit.train.process import keep_freed_memory

SIZES = [1 << k for k in (12, 14, 16, 18, 20, 22, 24, 26)]
REPEATS = 21
TENSORS = 8  # a three-layer model with norms has about as many


class Singles:
    """Each tensor an operation of its own, all started at once: what overlapping backward sends, less the overlap."""

    name = "horovod, single"

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd

    def __call__(self, gradients: Sequence[torch.Tensor]) -> None:
        handles = [self._hvd.allreduce_async_(g, op=self._hvd.Sum, name=f"single.{i}") for i, g in enumerate(gradients)]
        for handle in handles:
            self._hvd.synchronize(handle)


def seconds(world: MpiWorld, reduction: GradientSum, gradients: list[torch.Tensor]) -> float:
    world.comm.Barrier()
    begin = time.perf_counter()
    reduction(gradients)
    return time.perf_counter() - begin


def main() -> int:
    torch.set_num_threads(1)
    keep_freed_memory()
    world = MpiWorld()
    hvd = start(world.comm)
    reductions = (FlatSum(world), HorovodGrouped(hvd), Singles(hvd))
    rows, results = [], []
    for num_bytes in SIZES:
        gradients = [torch.ones(num_bytes // 4 // TENSORS) for _ in range(TENSORS)]
        times = np.array([[seconds(world, r, gradients) for r in reductions] for _ in range(REPEATS)])
        mpi, grouped, single = np.median(times[1:], axis=0)
        shown = [report.num_bytes(num_bytes), *(report.seconds(t) for t in (mpi, grouped, single))]
        rows.append([*shown, f"{grouped / mpi:.2f}", f"{single / grouped:.2f}"])
        results.append({"bytes": num_bytes, "mpi_s": mpi, "horovod_grouped_s": grouped, "horovod_single_s": single})
    if world.rank == 0:
        print(
            report.table(
                rows,
                ["gradients", "one Allreduce", "Horovod, grouped", "single", "grouped/Allreduce", "single/grouped"],
            )
        )
        print(file_result(f"reduction-{world.size}", {"ranks": world.size, "repeats": REPEATS, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
