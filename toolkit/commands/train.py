"""`bitring train`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from toolkit import config as configs
from toolkit import report
from toolkit.commands.common import in_job, log, read_config
from toolkit.comm import plan as planning
from toolkit.comm.world import World, on_root
from toolkit.errors import UserError
from toolkit.graph import cache
from toolkit.traffic import savings


def run(args: argparse.Namespace) -> int:
    if args.seeds < 1:
        raise UserError(f"--seeds is {args.seeds}; give a number >= 1")
    config = read_config(args)
    return in_job(args, config, lambda world: train(world, config, args))


def train(world: World, config: configs.Config, args: argparse.Namespace) -> int:
    """Train on every rank from each seed; rank 0 records and prints."""
    from simulator import workload as workloads
    from toolkit.train.loop import train_seed
    from toolkit.train.recorder import RunFolder, default_run_dir, record_workload
    from toolkit.train.trainer import make_transport, set_threads

    threads = set_threads(world, config.train.threads)
    partition = on_root(world, lambda: cache.ensure(config, world.size, log.info))
    notes: list[str] = partition.meta["graph"]["notes"]
    path = Path(args.run_dir) if args.run_dir else default_run_dir(config.run)
    folder: RunFolder | None = None

    def open_folder() -> None:
        nonlocal folder
        folder = RunFolder(path, config, world.size, notes)

    on_root(world, open_folder)
    transport = make_transport(world, config.method)
    part = partition.load(world.rank)
    results = []
    for seed in range(config.run.seed, config.run.seed + args.seeds):
        result, trainer = train_seed(part, config, world, transport, seed, folder)
        results.append(result)
        if folder is not None:
            folder.write("seed", **dataclasses.asdict(result))
    workload = record_workload(trainer, world, results[-1].own_stage_s, notes)
    transport.close()
    if folder is not None and workload is not None:
        workloads.save(workload, folder.path / "workload.npz")
        folder.write("summary", **summary(results))
        folder.close()
        print(describe(config, partition, results, world.size, threads, folder.path))
    if not all(result.replicas_agree for result in results):
        raise RuntimeError("the ranks' weights differ at the end of training: the reduction gave them different sums")
    return 0


def summary(results: list) -> dict[str, float | int]:  # type: ignore[type-arg]
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
    }


def describe(
    config: configs.Config,
    partition: cache.CachedPartition,
    results: list,  # type: ignore[type-arg]
    ranks: int,
    threads: int,
    folder: Path,
) -> str:
    """The closing table."""
    graph, method, last, total = partition.meta["graph"], config.method, results[-1], summary(results)
    accuracy = report.percent(total["test_accuracy_mean"])
    if len(results) > 1:
        accuracy += f" +- {100 * total['test_accuracy_deviation']:.1f}, mean and deviation over {len(results)} seeds,"
    at = f"at best validation (epoch {last.best.epoch + 1} of {last.epochs})" if len(results) == 1 else "at best validation"
    model = f"{config.model.kind}, {config.model.layers} layers x {config.model.hidden}"
    pairs = [
        ("graph", f"{graph['name']}: {graph['nodes']:,} nodes, {graph['directed_edges']:,} directed edges, {graph['classes']} classes"),
        ("model", model),
        ("ranks", f"{ranks}, {threads} thread{'s' if threads > 1 else ''} each"),
        ("method", f"{method.name}: {method.transport}, {method.codec}, {method.plan} plan" if ranks > 1 else "one process, no exchange"),
        ("test accuracy", f"{accuracy} {at}"),
        ("test macro F1", report.percent(total["test_macro_f1_mean"])),
        ("epoch", f"{report.seconds(total['epoch_s_median'])} (median; evaluation apart)"),
    ]
    if ranks > 1:
        pairs += _communication(config, partition, last)
    pairs += [("note", note) for note in graph["notes"]] + [("run folder", str(folder))]
    return report.facts(pairs)


def _communication(config: configs.Config, partition: cache.CachedPartition, last) -> list[tuple[str, str]]:  # type: ignore[no-untyped-def]
    graph, entry_bytes = partition.meta["graph"], cache.entry_bytes(config)
    shapes = planning.layer_shapes(config.model, graph["features"], graph["classes"])
    paper = savings(shapes, partition.channels, lambda entries: entries * entry_bytes)[0].total_bytes
    wait, reduce = last.stage_s["wait"], last.stage_s["weight_gradients"]
    return [
        (
            "communication",
            f"{report.percent(last.communication_share)} of an epoch: {report.seconds(wait)} waiting for rows, "
            f"{report.seconds(reduce)} weight gradients",
        ),
        (
            "bytes an epoch",
            f"{report.num_bytes(last.train_bytes)} of rows between ranks, "
            f"{report.num_bytes(last.weight_gradient_bytes)} of weight gradients a rank",
        ),
        ("", f"(the papers' plan would send {report.num_bytes(paper)} of rows: {report.ratio(paper, last.train_bytes)})"),
        ("bytes besides", f"{report.num_bytes(last.setup_bytes)} once, {report.num_bytes(last.evaluate_bytes)} an evaluation"),
    ]
