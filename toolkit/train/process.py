"""What a rank sets for its own process: threads, and an allocator that keeps what it has."""

from __future__ import annotations

import ctypes
import sys

import torch

from toolkit import launch
from toolkit.comm.world import World

# mallopt parameters of glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def prepare_process(world: World, threads: int) -> int:
    """Set the threads of this rank (0: cores of the host over the ranks on it) and the allocator; give the threads."""
    if threads == 0:
        threads = max(1, launch.cores() // world.ranks_on_host())
    torch.set_num_threads(threads)
    keep_freed_memory()
    return threads


def keep_freed_memory() -> None:
    """glibc hands large temporaries back to the system at once, and each next one pays its page faults again."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 64 << 20)
