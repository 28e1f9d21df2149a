"""What a partition and a plan count, for the simulator: a workload without a run. No torch, no MPI."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.keyed import mix64, mix_array
from simulator.made import Kind, LayerCounts, ModelCounts, PartCounts, Rates, make
from simulator.workload import Workload
from toolkit import config as configs
from toolkit import plan as planning
from toolkit.graph.cache import CachedPartition
from toolkit.graph.coefficients import alpha_squared, edge_pattern
from toolkit.graph.part import Part
from toolkit.plan import LayerShape, LayerStep
from toolkit.rounding import DRAWN_FROM

DENSEST = 0.1  # share of nonzero entries up to which rows stay sparse: a sparse product beats a dense one below


def workload_of(config: configs.Config, partition: CachedPartition, rates: Rates, costs: PairCosts) -> Workload:
    """The workload of a configuration over a partition: messages as a run counts them, seconds by ``rates``.

    Parts are read one after the other. MadeError.
    """
    graph, ranks = partition.meta["graph"], int(partition.meta["ranks"])
    plan = planning.plan_of(config, graph["features"], graph["classes"])
    shapes = planning.layer_shapes(config.model, graph["features"], graph["classes"])
    kind: Kind = config.model.kind
    steps = [step for step in plan.train if step.sends != "nothing"]
    counts: list[dict[str, int]] = []
    received: dict[int, list[list[NDArray[np.float64]]]] = {step.layer: [] for step in steps}  # [receiver][sender]
    for rank in range(ranks):
        part = partition.load(rank)
        pattern = edge_pattern(part, kind)
        halo = pattern[:, part.num_inner :]
        squares = None if kind == "gat" else halo.multiply(halo).tocsr()
        counts.append(_counts(part, pattern, dense=plan.train[0].sends == "inputs"))
        for step in steps:
            received[step.layer].append(_by_owner(part, alpha_squared(part, squares, step), step))
    parts = PartCounts(
        inner=_column(counts, "inner"),
        halo=_column(counts, "halo"),
        local=_column(counts, "local"),
        remote=_column(counts, "remote"),
        feature_entries=_column(counts, "features") if "features" in counts[0] else None,
        halo_feature_entries=_column(counts, "halo features") if "features" in counts[0] else None,
    )
    layers = [_layer(step, shapes[step.layer], config, received.get(step.layer, [])) for step in plan.train]
    model = ModelCounts(
        kind=kind,
        parameters=parameters(config.model, graph["features"], graph["classes"]),
        hidden=config.model.hidden,
        classes=graph["classes"],
    )
    method = config.method
    return make(parts, layers, model, rates, costs, transport=f"{method.transport}:{method.ring}", graph=graph["name"])


def parameters(model: configs.Model, features: int, classes: int) -> int:
    """Weights of a network: what Network makes."""
    total = 0
    for layer, shape in enumerate(planning.layer_shapes(model, features, classes)):
        last = layer == model.layers - 1
        if model.kind == "gat":  # W, two attention vectors a head, a bias (heads of the last layer are averaged)
            total += shape.inputs * shape.outputs + 2 * shape.outputs + (classes if last else shape.outputs)
        else:
            total += shape.inputs * shape.outputs * (2 if model.kind == "sage" else 1) + shape.outputs
        if not last and model.norm != "none":
            total += 2 * model.hidden
    return total


def _counts(part: Part, pattern: sp.csr_matrix, *, dense: bool) -> dict[str, int]:
    local = int((pattern.indices < part.num_inner).sum())
    found = {"inner": part.num_inner, "halo": part.num_halo, "local": local, "remote": pattern.nnz - local}
    features = part.features
    if isinstance(features, sp.csr_matrix) and not dense and features.nnz <= DENSEST * np.prod(features.shape):
        found["features"] = features.nnz
        found["halo features"] = round(features.nnz / max(part.num_inner, 1) * part.num_halo)  # as full as those here
    return found


def _column(counts: list[dict[str, int]], key: str) -> NDArray[np.int64]:
    return np.array([one.get(key, 0) for one in counts], np.int64)


def _by_owner(part: Part, alphas: NDArray[np.float64], step: LayerStep) -> list[NDArray[np.float64]]:
    """What arrives, sender after sender."""
    owners = np.repeat(np.arange(part.ranks), part.halo_counts)[planning.travelling(part.halo_reach, step)]
    return [alphas[owners == owner] for owner in range(part.ranks)]


def _layer(
    step: LayerStep, shape: LayerShape, config: configs.Config, received: list[list[NDArray[np.float64]]]
) -> LayerCounts:
    ranks = len(received)
    rows = np.array([[len(received[r][s]) for r in range(ranks)] for s in range(ranks)], np.int64).reshape(ranks, ranks)
    total = int(rows.sum())
    ordered = [received[r][s] for s in range(ranks) for r in range(ranks)]
    return LayerCounts(
        layer=step.layer,
        inputs=shape.inputs,
        outputs=shape.outputs,
        sends=step.sends,
        width=step.width,
        entries=step.entries,
        backward=step.backward,
        dropout=step.dropout,
        rows=rows,
        bits={direction: _bits(config, step, direction, total) for direction in ("forward", "backward")},
        alpha_squared=np.concatenate(ordered) if ordered else np.empty(0),
    )


def _bits(config: configs.Config, step: LayerStep, direction: str, messages: int) -> NDArray[np.uint8]:
    """Widths as a run has them; adaptive ones, those of the first period; drawn ones, drawn likewise, not alike."""
    method = config.method
    exact = 64 if config.train.dtype == "float64" else 32
    if not planning.by_codec(method, "train", step.layer) or method.codec == "float32":
        return np.full(messages, exact, np.uint8)
    if method.codec == "bfloat16":
        return np.full(messages, 16, np.uint8)
    if method.widths == "uniform":
        key = np.uint64(mix64(config.run.seed, step.layer, direction == "backward"))
        drawn = mix_array(np.arange(messages, dtype=np.uint64) ^ key) >> np.uint64(32)
        bits: NDArray[np.uint8] = np.array(DRAWN_FROM, np.uint8)[(drawn * np.uint64(len(DRAWN_FROM))) >> np.uint64(32)]
        return bits
    return np.full(messages, 8 if method.widths == "adaptive" else method.bits, np.uint8)
