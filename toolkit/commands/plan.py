"""`bitring plan` and `bitring partition`: what will travel, before anything runs."""

from __future__ import annotations

import argparse
import json
import logging
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit import config as configs
from toolkit import methods, report
from toolkit import plan as planning
from toolkit.commands.common import check_ranks, log, read_config, start_logging
from toolkit.graph import cache
from toolkit.graph.partition import busiest
from toolkit.traffic import Flow, Saving, flows, savings, total_bytes

SENDS = {"nothing": "nothing (held)", "inputs": "input rows", "outputs": "rows after W"}
STEP_TEXT = {
    "paper": "the papers' plan: whole rows, every layer, every epoch",
    "once": "layer 0 once",
    "kept": "only entries that dropout keeps",
    "narrow": "rows after W where it narrows",
    "needed": "only rows that can reach a training node",
}


FLOW_HEADER = ["layer", "direction", "travels", "rows", "entries", "of", "bytes"]
SAVING_HEADER = ["step", "what it does", "bytes", "busiest rank", "factor"]
RANK_HEADER = ["rank", "nodes", "train", "marginal", "halo rows", "halo share", "sends", "receives"]
WIDEST_MATRIX = 16  # ranks: a wider table of channels no longer fits a screen
Bytes = NDArray[np.int64]


def run_plan(args: argparse.Namespace) -> int:
    config, partition = _prepare(args)
    graph = partition.meta["graph"]
    plan = planning.plan_of(config, graph["features"], graph["classes"])
    found = {
        "train": flows(plan.train, partition.channels, partial(planning.message_bytes, config, "train")),
        "evaluate": flows(plan.evaluate, partition.channels, partial(planning.message_bytes, config, "evaluate")),
    }
    shapes = planning.layer_shapes(config.model, graph["features"], graph["classes"])
    saved = savings(shapes, partition.channels, partial(planning.message_bytes, config, "train"))
    if args.json:
        print(json.dumps(_plan_json(found, saved, partition), indent=1))
        return 0
    print(_heading(config, partition, "plan " + config.method.plan))
    for kind, text in (("train", "A training epoch"), ("evaluate", "An evaluation")):
        print(f"\n{text}: {_traffic_text(total_bytes(found[kind]))}")
        print(report.table([_flow_row(flow) for flow in found[kind]], FLOW_HEADER))
    print("\nWhat each step of the exact plan saves in a training epoch, one after the other:")
    print(report.table([_saving_row(s, saved[0]) for s in saved], SAVING_HEADER))
    print("\n" + _tries_text(partition.meta))
    return 0


def run_partition(args: argparse.Namespace) -> int:
    config, partition = _prepare(args)
    meta, graph = partition.meta, partition.meta["graph"]
    plan = planning.plan_of(config, graph["features"], graph["classes"])
    per_channel = total_bytes(flows(plan.train, partition.channels, partial(planning.message_bytes, config, "train")))
    if args.json:
        print(
            json.dumps(
                {**meta, "epoch_bytes_per_channel": per_channel.tolist(), "folder": str(partition.folder)}, indent=1
            )
        )
        return 0
    print(_heading(config, partition, f"{config.partition.method} partition"))
    print(report.facts(_partition_facts(partition, per_channel)))
    print("\n" + report.table(_rank_rows(meta["rank"], per_channel), RANK_HEADER))
    if 1 < meta["ranks"] <= WIDEST_MATRIX:
        print("\nBytes of rows a training epoch, from the rank on the left to the rank above:")
        body = [[str(s), *(report.num_bytes(b) if b else "." for b in row)] for s, row in enumerate(per_channel)]
        print(report.table(body, ["", *(str(r) for r in range(meta["ranks"]))]))
    print("\n" + _tries_text(meta))
    return 0


def _partition_facts(partition: cache.CachedPartition, per_channel: Bytes) -> list[tuple[str, str]]:
    meta = partition.meta
    inner, edges = (np.array([rank[key] for rank in meta["rank"]]) for key in ("inner", "edges"))
    cut, directed = meta["cut_directed_edges"], meta["graph"]["directed_edges"]
    return [
        ("edges cut", f"{cut:,} of {directed:,} directed ({report.percent(cut / max(directed, 1))})"),
        ("imbalance", f"{_imbalance(inner):.3f} nodes, {_imbalance(edges):.3f} edges (largest part / mean)"),
        ("epoch", _traffic_text(per_channel)),
        ("folder", str(partition.folder)),
    ]


def _imbalance(sizes: Bytes) -> float:
    return float(sizes.max() / max(sizes.mean(), 1e-9))


def _rank_rows(ranks: list[dict[str, int]], per_channel: Bytes) -> list[list[str]]:
    return [
        [
            str(r),
            *(f"{rank[key]:,}" for key in ("inner", "train", "marginal", "halo")),
            report.percent(rank["halo"] / (rank["inner"] + rank["halo"])),
            report.num_bytes(per_channel[r].sum()),
            report.num_bytes(per_channel[:, r].sum()),
        ]
        for r, rank in enumerate(ranks)
    ]


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
        f"{config.model.kind} {config.model.layers} layers x {config.model.hidden}, {methods.codec_text(config.method)}"
    )


def _traffic_text(per_channel: Bytes) -> str:
    return (
        f"{report.num_bytes(per_channel.sum())} of rows, "
        f"the busiest rank sends plus receives {report.num_bytes(busiest(per_channel))}"
    )


def _saving_row(saving: Saving, first: Saving) -> list[str]:
    return [
        saving.step,
        STEP_TEXT[saving.step],
        report.num_bytes(saving.total_bytes),
        report.num_bytes(saving.busiest_bytes),
        report.ratio(first.total_bytes, saving.total_bytes),
    ]


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
        f"Partitions tried (* kept, least by {meta['settings']['choose_by']}), bytes of a "
        "training epoch under the exact plan; ring: slowest channel of each round, summed:\n"
        + report.table(rows, header)
    )


def _plan_json(found: dict[str, list[Flow]], saved: list[Saving], partition: cache.CachedPartition) -> dict[str, Any]:
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
