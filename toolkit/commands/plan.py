"""`bitring plan` and `bitring partition`: what will travel, before anything runs."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any

import numpy as np

from toolkit import config as configs
from toolkit import report
from toolkit.commands.common import check_ranks, log, read_config, start_logging
from toolkit.comm import plan as planning
from toolkit.graph import cache
from toolkit.traffic import Flow, busiest_bytes, flows, savings, total_bytes

SENDS = {"nothing": "nothing (held)", "inputs": "input rows", "outputs": "rows after W"}
STEP_TEXT = {
    "paper": "the papers' plan: whole rows, every layer, every epoch",
    "once": "layer 0 once",
    "kept": "only entries that dropout keeps",
    "narrow": "rows after W where it narrows",
    "needed": "only rows that can reach a training node",
}


def run_plan(args: argparse.Namespace) -> int:
    config, partition = _prepare(args)
    graph = partition.meta["graph"]
    entry_bytes = cache.entry_bytes(config)
    shapes = planning.layer_shapes(config.model, graph["features"], graph["classes"])
    plan = planning.make_plan(shapes, planning.parse_steps(config.method.plan))
    found = {
        "train": flows(plan.train, partition.channels, lambda entries: entries * entry_bytes),
        "evaluate": flows(plan.evaluate, partition.channels, lambda entries: entries * 4),
    }
    saved = savings(shapes, partition.channels, lambda entries: entries * entry_bytes)
    if args.json:
        print(json.dumps(_plan_json(found, saved, partition), indent=1))
        return 0
    print(_heading(config, partition, "plan " + config.method.plan))
    for kind, text in (("train", "A training epoch"), ("evaluate", "An evaluation")):
        per_channel = total_bytes(found[kind])
        print(f"\n{text}: {report.num_bytes(per_channel.sum())}; busiest rank {report.num_bytes(busiest_bytes(per_channel))}")
        print(report.table([_flow_row(flow) for flow in found[kind]], ["layer", "direction", "travels", "rows", "entries", "of", "bytes"]))
    print("\nWhat each step of the exact plan saves in a training epoch, one after the other:")
    first = saved[0].total_bytes
    print(
        report.table(
            [
                [s.step, STEP_TEXT[s.step], report.num_bytes(s.total_bytes), report.num_bytes(s.busiest_bytes), report.ratio(first, s.total_bytes)]
                for s in saved
            ],
            ["step", "what it does", "bytes", "busiest rank", "less by"],
        )
    )
    print("\n" + _tries_text(partition.meta))
    return 0


def run_partition(args: argparse.Namespace) -> int:
    config, partition = _prepare(args)
    meta, graph = partition.meta, partition.meta["graph"]
    plan = planning.make_plan(
        planning.layer_shapes(config.model, graph["features"], graph["classes"]), planning.parse_steps(config.method.plan)
    )
    entry_bytes = cache.entry_bytes(config)
    per_channel = total_bytes(flows(plan.train, partition.channels, lambda entries: entries * entry_bytes))
    if args.json:
        print(json.dumps({**meta, "epoch_bytes_per_channel": per_channel.tolist(), "folder": str(partition.folder)}, indent=1))
        return 0
    inner = np.array([rank["inner"] for rank in meta["rank"]])
    edges = np.array([rank["edges"] for rank in meta["rank"]])
    print(_heading(config, partition, f"{config.partition.method} partition"))
    cut = meta["cut_directed_edges"]
    print(
        report.facts(
            [
                ("edges cut", f"{cut:,} of {graph['directed_edges']:,} directed ({report.percent(cut / max(graph['directed_edges'], 1))})"),
                ("imbalance", f"{inner.max() / inner.mean():.3f} nodes, {edges.max() / max(edges.mean(), 1e-9):.3f} edges (largest part / mean)"),
                ("epoch", f"{report.num_bytes(per_channel.sum())} of rows, busiest rank {report.num_bytes(busiest_bytes(per_channel))}"),
                ("folder", str(partition.folder)),
            ]
        )
    )
    rows = [
        [
            str(r),
            f"{rank['inner']:,}",
            f"{rank['train']:,}",
            f"{rank['marginal']:,}",
            f"{rank['halo']:,}",
            report.percent(rank["halo"] / (rank["inner"] + rank["halo"])),
            report.num_bytes(per_channel[r].sum()),
            report.num_bytes(per_channel[:, r].sum()),
        ]
        for r, rank in enumerate(meta["rank"])
    ]
    print("\n" + report.table(rows, ["rank", "nodes", "train", "marginal", "halo rows", "halo share", "sends", "receives"]))
    if 1 < meta["ranks"] <= 16:
        print("\nBytes of rows a training epoch, from the rank on the left to the rank above:")
        body = [[str(s), *(report.num_bytes(b) if b else "." for b in row)] for s, row in enumerate(per_channel)]
        print(report.table(body, ["", *(str(r) for r in range(meta["ranks"]))]))
    print("\n" + _tries_text(meta))
    return 0


def _prepare(args: argparse.Namespace) -> tuple[configs.Config, cache.CachedPartition]:
    check_ranks(args.ranks)
    start_logging(rank=0, size=1)
    if args.json:
        log.setLevel(logging.WARNING)
    config = read_config(args)
    return config, cache.ensure(config, args.ranks, log.info)


def _heading(config: configs.Config, partition: cache.CachedPartition, what: str) -> str:
    graph = partition.meta["graph"]
    return (
        f"{graph['name']}: {graph['nodes']:,} nodes over {partition.meta['ranks']} ranks, {what}, "
        f"{config.model.kind} {config.model.layers} layers x {config.model.hidden}, {config.method.codec}"
    )


def _flow_row(flow: Flow) -> list[str]:
    step = flow.step
    held = step.sends == "nothing"
    return [
        str(step.layer),
        flow.direction,
        SENDS[step.sends],
        f"{flow.rows.sum():,}",
        "-" if held else str(step.entries),
        "-" if held else str(step.width),
        report.num_bytes(flow.num_bytes.sum()),
    ]


def _tries_text(meta: dict[str, Any]) -> str:
    """The best of k seeds and numberings, beside what the first seed would have given."""
    tries, kept = meta["tries"], meta["tries"][meta["kept_try"]]
    rows = [
        [
            f"{t['seed']}{' *' if t is kept else ''}",
            report.num_bytes(t["total_bytes"]),
            report.num_bytes(t["busiest_bytes"]),
            report.num_bytes(t["ring_bytes"]),
            report.num_bytes(t["ring_bytes_chosen"]),
        ]
        for t in tries
    ]
    header = ["seed", "total", "busiest rank", "ring", "ring, renumbered"]
    return (
        "Partitions tried (* kept), bytes of a training epoch; ring: slowest channel of each round, summed:\n"
        + report.table(rows, header)
    )


def _plan_json(found: dict[str, list[Flow]], saved: list[Any], partition: cache.CachedPartition) -> dict[str, Any]:
    return {
        "ranks": partition.meta["ranks"],
        "passes": {
            kind: [
                {
                    "layer": f.step.layer,
                    "direction": f.direction,
                    "sends": f.step.sends,
                    "entries": f.step.entries,
                    "width": f.step.width,
                    "rows": f.rows.tolist(),
                    "bytes": f.num_bytes.tolist(),
                }
                for f in flows_of
            ]
            for kind, flows_of in found.items()
        },
        "savings": [{"step": s.step, "total_bytes": s.total_bytes, "busiest_bytes": s.busiest_bytes} for s in saved],
        "tries": partition.meta["tries"],
        "kept_try": partition.meta["kept_try"],
    }
