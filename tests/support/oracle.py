"""Run N ranks as threads and compare them with one process."""

from __future__ import annotations

from tests.support.local_world import run_ranks
from toolkit.config import Config
from toolkit.graph.data import Graph, IntArray
from toolkit.graph.part import build_parts
from toolkit.verify import Verification, compare, follow, single_process


def verify_locally(graph: Graph, config: Config, parts: IntArray, ranks: int, steps: int) -> Verification:
    """The largest differences on the worst rank."""
    owned = list(build_parts(graph, parts, ranks))
    reference = single_process(graph, config, steps)
    trajectories = run_ranks(ranks, lambda world, transport: follow(owned[world.rank], config, world, transport, steps))
    found = [compare(ours, reference, config, owned[0], steps) for ours in trajectories]
    return max(found, key=lambda v: v.largest)
