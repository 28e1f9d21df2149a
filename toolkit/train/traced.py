"""The workload of a run: one more pass with its rows traced, gathered at rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from simulator.workload import Exchange, Workload
from toolkit.comm.codec import Plain
from toolkit.comm.halo import RowTap
from toolkit.comm.layout import Layout
from toolkit.comm.ledger import Direction, StageKey
from toolkit.comm.world import World
from toolkit.graph.coefficients import alpha_squared, gcn_coefficients, mean_coefficients
from toolkit.graph.part import Part
from toolkit.plan import LayerStep
from toolkit.train.attended import AttentionRecorder

if TYPE_CHECKING:
    from toolkit.train.trainer import Trainer

DENSE = ("dense", "masks", "optimizer")
RowKey = tuple[int, Direction]  # layer, direction


class RangeRecorder:
    """(max - min)^2 of every row that this rank sends, per layer and direction."""

    def __init__(self) -> None:
        self.traced: dict[RowKey, NDArray[np.float64]] = {}

    def __call__(self, step: LayerStep, direction: Direction, ranges: Tensor) -> None:
        self.traced[step.layer, direction] = ranges.double().square().numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What rank 0 needs of every rank."""

    traced: dict[RowKey, NDArray[np.float64]]  # by receiver
    bits: dict[RowKey, NDArray[np.uint8]]  # by receiver
    alphas: dict[int, NDArray[np.float64]]  # per layer, of the rows received, by sender
    send_counts: dict[int, tuple[int, ...]]
    receive_counts: dict[int, tuple[int, ...]]
    seconds: Mapping[StageKey, float]
    inner: int = 0  # nodes that the rank owns


def record_workload(
    trainer: Trainer, world: World, seconds: Mapping[StageKey, float], notes: Sequence[str]
) -> Workload | None:
    """A Workload at rank 0, None elsewhere; ``seconds`` are this rank's medians. Changes no weight and no count."""
    record = trace(trainer, seconds, trainer.config.train.epochs)
    everyone = world.gather(record)
    if everyone is None:
        return None
    steps = [step for step in trainer.engine.plan.train if step.sends != "nothing"]
    exchanges = [exchange_of(everyone, step, "forward") for step in steps]
    exchanges += [exchange_of(everyone, step, "backward") for step in reversed(steps) if step.backward]
    held = [step.layer for step in trainer.engine.plan.train if step.sends == "nothing"]
    reduce_s = [r.seconds.get(("weight_gradients", -1, "forward"), 0.0) for r in everyone]
    return Workload(
        ranks=world.size,
        exchanges=tuple(exchanges),
        held_s=np.array([sum(_products_s(r, layer) for layer in held) for r in everyone]),
        dense_s=np.array([sum(v for (stage, _, _), v in r.seconds.items() if stage in DENSE) for r in everyone]),
        weight_gradient_bytes=trainer.gradient_bytes,
        weight_gradient_s=min(reduce_s),  # the last rank to come waits for nobody
        transport=f"{trainer.config.method.transport}:{trainer.config.method.ring}",
        graph=trainer.part.graph_name,
        notes=tuple(notes),
        inner=np.array([record.inner for record in everyone]),
    )


def trace(trainer: Trainer, seconds: Mapping[StageKey, float], epoch: int, tap: RowTap | None = None) -> RankRecord:
    """What one more pass, of that epoch, tells of this rank; ``tap`` is told its rows. Every rank calls it."""
    recorder, attention, engine = RangeRecorder(), AttentionRecorder(trainer.part), trainer.engine
    with trainer.aside(trace=recorder, tap=tap), attention.listening(trainer.network):
        trainer.gradients(epoch)
    routes = {step.layer: engine.routes["train", step.layer] for step in engine.plan.train}
    return RankRecord(
        traced=recorder.traced,
        bits={
            (step.layer, direction): _wire_bits(trainer, way.out)
            for step in engine.plan.train
            for direction, way in engine.ways.get(("train", step.layer), (0, {}))[1].items()
        },
        alphas=coefficients_received(trainer, engine.plan.train) | attention.squares,
        send_counts={layer: route.lent.counts for layer, route in routes.items()},
        receive_counts={layer: route.borrowed.counts for layer, route in routes.items()},
        seconds=seconds,
        inner=trainer.part.num_inner,
    )


def coefficients_received(trainer: Trainer, steps: Sequence[LayerStep]) -> dict[int, NDArray[np.float64]]:
    """alpha_squared of the rows that this rank receives, by layer and then sender."""
    squares = _halo_coefficients(trainer.part, trainer.engine.kind)
    return {step.layer: alpha_squared(trainer.part, squares, step) for step in steps}


def _wire_bits(trainer: Trainer, layout: Layout) -> NDArray[np.uint8]:
    codec = trainer.engine.codec
    if isinstance(codec, Plain):
        return np.full(len(layout), 8 * codec.dtype.itemsize, np.uint8)
    return layout.bits.numpy()


def _halo_coefficients(part: Part, kind: str) -> sp.csr_matrix | None:
    """[n, h] squared coefficients of edges from halo rows; None where they are learned."""
    if kind == "gat":
        return None
    matrix = (gcn_coefficients(part) if kind == "gcn" else mean_coefficients(part))[:, part.num_inner :]
    return matrix.multiply(matrix).tocsr()


def _products_s(record: RankRecord, layer: int) -> float:
    return sum(
        value for (stage, at, _), value in record.seconds.items() if at == layer and stage in ("central", "marginal")
    )


def exchange_of(everyone: list[RankRecord], step: LayerStep, direction: Direction) -> Exchange:
    """Put every rank's lists in the order of a Workload: by sender, then receiver, then node."""
    layer, size = step.layer, len(everyone)
    rows = np.array([record.send_counts[layer] for record in everyone])
    alphas = np.ones(int(rows.sum()))
    if direction == "forward":
        received = [np.split(r.alphas[layer], np.cumsum(r.receive_counts[layer])[:-1]) for r in everyone]
        alphas = np.concatenate([received[r][s] for s in range(size) for r in range(size)])

    def stage(name: str) -> NDArray[np.float64]:
        return np.array([record.seconds.get((name, layer, direction), 0.0) for record in everyone])

    seconds: dict[str, Any] = {f"{s}_s": stage(s) for s in ("encode", "flight", "central", "decode", "marginal")}
    return Exchange(
        layer=layer,
        direction=direction,
        row_entries=step.entries,
        bits=np.concatenate([record.bits[layer, direction] for record in everyone]),
        rows=rows if direction == "forward" else rows.T.copy(),
        range_squared=np.concatenate([record.traced[layer, direction] for record in everyone]),
        alpha_squared=alphas,
        **seconds,
    )
