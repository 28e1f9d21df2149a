"""Rank program: ends in the way that the first argument names."""

from __future__ import annotations

import os
import signal
import sys
import time

from mpi4py import MPI

from toolkit import launch

how, rank = sys.argv[1], MPI.COMM_WORLD.Get_rank()
sys.stdout.write(f"rank {rank} of {MPI.COMM_WORLD.Get_size()} with {sys.argv[2:]}\n")  # print would write twice
sys.stdout.flush()
if how == "all":
    launch.leave(int(sys.argv[2]), sys.argv[3])
if how == "lone" and rank == 1:
    launch.leave(2, "only rank 1 says so")
if how == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if how == "raises" and rank == 1:
    raise ValueError("rank 1 raises")
if how == "hook" and rank == 1:
    launch.install_excepthook()
    raise ValueError("rank 1 raises under the hook")
if how == "sleeps":
    time.sleep(300)
if how == "busy":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
MPI.COMM_WORLD.Barrier()  # the other ranks wait here for ever, unless the job ends
if how == "busy":
    while True:
        pass
launch.leave(0)
