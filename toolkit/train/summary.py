"""What a run prints at its end, and writes as its summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from toolkit import config as configs
from toolkit import launch, methods, report
from toolkit import plan as planning
from toolkit.graph import cache
from toolkit.traffic import savings
from toolkit.train.loop import SeedResult


def summarise(results: Sequence[SeedResult]) -> dict[str, float]:
    """Mean and sample deviation over seeds of the test accuracy at best validation."""
    test = np.array([result.best.scores["test"].accuracy for result in results])
    macro = np.array([result.best.scores["test"].macro_f1 for result in results])
    many = len(results) > 1
    return {
        "seeds": len(results),
        "test_accuracy_mean": float(test.mean()),
        "test_accuracy_deviation": float(test.std(ddof=1)) if many else float("nan"),
        "test_macro_f1_mean": float(macro.mean()),
        "epoch_s_median": float(np.median([result.epoch_s for result in results])),
    } | _assignment_overhead(results)


def _assignment_overhead(results: Sequence[SeedResult]) -> dict[str, float]:
    """Adaptive widths: seconds that assignments held training up, over seeds, and their share of all epochs."""
    told = [result for result in results if result.assigning]
    if not told:
        return {}
    held_up = sum(result.assigning["trace_s"] + result.assigning["wait_s"] for result in told)
    return {
        "assignments": sum(result.assigning["assignments"] for result in told),
        "assignment_held_up_s": held_up,
        "assignment_share": held_up / sum(result.wall_s for result in told),
        "calibrate_s": sum(result.assigning["calibrate_s"] for result in told),
    }


def describe(
    config: configs.Config,
    partition: cache.CachedPartition,
    results: Sequence[SeedResult],
    ranks: int,
    threads: int,
    folder: Path,
) -> str:
    """The closing table."""
    graph, method, last, total = partition.meta["graph"], config.method, results[-1], summarise(results)
    accuracy = report.percent(total["test_accuracy_mean"])
    if len(results) > 1:
        accuracy += (
            f" +- {100 * total['test_accuracy_deviation']:.1f} points (mean, sample deviation, {len(results)} seeds)"
        )
    at = (
        "at best validation" if partition.meta["graph"]["val"] else "at the last epoch, there being no validation nodes"
    )
    if len(results) == 1:
        at += f" (epoch {last.best.epoch + 1} of {last.epochs})"
    chosen = config.train.metric
    mean = float(np.mean([getattr(result.best.scores["test"], chosen) for result in results]))
    judged = [] if chosen in ("accuracy", "macro_f1") else [(f"test {chosen}", report.percent(mean))]
    at = at.replace("best validation", "best validation" + ("" if chosen == "accuracy" else f" {chosen}"))
    how = f"{method.name}: {method.transport}, {methods.codec_text(method)}, {method.plan} plan"
    size, edges = f"{graph['nodes']:,}", f"{graph['directed_edges']:,}"
    pairs = [
        ("graph", f"{graph['name']}: {size} nodes, {edges} directed edges, {graph['classes']} classes"),
        ("model", f"{config.model.kind}, {config.model.layers} layers x {config.model.hidden}"),
        ("ranks", _ranks_text(ranks, threads)),
        ("method", how if ranks > 1 else "one process, no exchange"),
        ("test accuracy", f"{accuracy} {at}"),
        ("test macro F1", report.percent(total["test_macro_f1_mean"])),
        *judged,
        ("epoch", f"{report.seconds(total['epoch_s_median'])} (median; evaluation apart)"),
    ]
    if ranks > 1:
        pairs += _communication(config, partition, last)
    pairs += [("note", note) for note in graph["notes"]] + [("run folder", str(folder))]
    return report.facts(pairs)


def _communication(config: configs.Config, partition: cache.CachedPartition, last: SeedResult) -> list[tuple[str, str]]:
    graph = partition.meta["graph"]
    shapes = planning.layer_shapes(config.model, graph["features"], graph["classes"])
    paper = savings(shapes, partition.channels, planning.floats)[0].total_bytes
    wait, reduce, flight = (last.stage_s[stage] for stage in ("wait", "weight_gradients", "flight"))
    all_told = last.train_bytes + last.evaluate_bytes / config.train.eval_every
    return [
        (
            "communication",
            f"{report.percent(last.communication_share)} of an epoch: {report.seconds(wait)} waiting for rows, "
            f"{report.seconds(reduce)} summing weight gradients",
        ),
        ("hidden", f"{report.percent(last.hidden_share)} of the messages' {report.seconds(flight)} in flight"),
        (
            "bytes an epoch",
            f"{report.num_bytes(last.train_bytes)} of rows in training, {report.num_bytes(last.evaluate_bytes)} in an "
            f"evaluation: {report.num_bytes(all_told)} all told",
        ),
        (
            "",
            f"(the papers' plan in float32 sends {report.num_bytes(paper)} in training: "
            f"{report.ratio(paper, last.train_bytes)})",
        ),
        (
            "bytes besides",
            f"{report.num_bytes(last.setup_bytes)} once; gradients of {report.num_bytes(last.weight_gradient_bytes)}, "
            "summed each epoch",
        ),
        *_assigning(last),
    ]


def _assigning(last: SeedResult) -> list[tuple[str, str]]:
    """What choosing widths cost, where they are chosen."""
    if not last.assigning.get("assignments"):
        return []
    held_up = last.assigning["trace_s"] + last.assigning["wait_s"]
    count = int(last.assigning["assignments"])
    measuring = last.assigning["calibrate_s"]
    return [
        (
            "widths",
            f"chosen {count} time{'s' if count > 1 else ''}: {report.seconds(held_up)} of training in all, "
            f"{report.percent(held_up / last.wall_s)} of it; {report.seconds(last.assigning['beside_s'])} beside it"
            + (f"; costs of the network measured in {report.seconds(measuring)}" if measuring else ""),
        )
    ]


def _ranks_text(ranks: int, threads: int) -> str:
    text = f"{ranks}, {threads} thread{'s' if threads > 1 else ''} each"
    if ranks == 1:
        return text + " (-np N for more)"
    if ranks > launch.cores():
        text += f"; more than the {launch.cores()} cores here, so times are not those of {ranks} machines"
    return text
