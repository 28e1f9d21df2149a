"""A slow network between MPI hosts on one machine, to measure communication where it costs something."""

from bench.netlab.lab import Lab

__all__ = ["Lab"]
