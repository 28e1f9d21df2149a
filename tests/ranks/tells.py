"""Rank program: writes its arguments and its environment to FOLDER/<rank>.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mpi4py import MPI

from toolkit import launch

rank = MPI.COMM_WORLD.Get_rank()
told = {
    "argv": sys.argv[2:],
    "env": dict(os.environ),
    "job": [launch.job_rank(), launch.job_size()],
    "world": [rank, MPI.COMM_WORLD.Get_size()],
    "toolkit": launch.__file__,
}
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")
launch.leave(0)
