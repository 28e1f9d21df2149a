"""A workload without a run: from what a partition counts and a machine's compute rates.

Messages are counted, exactly as a run's plan does. Compute seconds are estimated: operations over rates, a roofline
without its corner (flop/s and byte/s of memory add up). N ranks; per rank, n inner and h halo rows, z coefficients
(or edges), D entries in, F out:

    product          z (4 D + 8) + 8 n D bytes: each coefficient reads a row of D floats, each row is written and read
    W                2 n D F flop, 4 n (D + F) bytes; backward the same for dW, and again for the rows' errors
    sparse features  a product with their nonzeros as coefficients, F wide
    encode, decode   8 e + its own bytes, for each message of e entries: rows read, placed; the message written, read
    between layers   32 bytes an entry of a hidden row: bias, normalisation, activation, dropout, there and back
    masks            20 operations an entry of inner and halo rows, where there is dropout
    loss             24 bytes an entry of the logits
    optimiser        28 bytes a weight: Adam reads weight, gradient, two moments, and writes three of them
    gradients        2 (N - 1) / N of their bytes and 2 (N - 1) messages over the slowest pair: a ring allreduce

GraphSAGE has two W a layer; GAT projects halo rows too, and its products count three times (scores, softmax, sum).
What calls cost beside their operations is not in it: on small graphs that is most of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.cost import PairCosts
from simulator.workload import Exchange, Workload, message_bytes

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
FLOAT = 4  # bytes
INDEX = 8  # a coefficient and its column
BETWEEN, MASK_OPERATIONS, LOSS, OPTIMISER = 32, 20, 24, 28
Kind = Literal["gcn", "sage", "gat"]


class MadeError(ValueError):
    """Counts or rates that no workload can be made from: one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What each rank's device computes: [N] operations and bytes of memory a second."""

    flop_s: F64
    memory_byte_s: F64

    def __post_init__(self) -> None:
        for name, values in (("flop_s", self.flop_s), ("memory_byte_s", self.memory_byte_s)):
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise MadeError(f"{name} is {values.min():g}; a compute rate is finite and above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Operations and bytes of memory, [N]."""

    flop: F64
    num_bytes: F64

    def __add__(self, other: Work) -> Work:
        return Work(flop=self.flop + other.flop, num_bytes=self.num_bytes + other.num_bytes)

    def times(self, factor: float) -> Work:
        return Work(flop=self.flop * factor, num_bytes=self.num_bytes * factor)

    def seconds(self, rates: Rates) -> F64:
        return self.flop / rates.flop_s + self.num_bytes / rates.memory_byte_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartCounts:
    """What ranks own, [N] each."""

    inner: I64  # rows
    halo: I64
    local: I64  # coefficients from rows at home
    remote: I64  # coefficients from halo rows
    feature_entries: I64 | None  # nonzeros of sparse features of inner rows; None: they are dense
    halo_feature_entries: I64 | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCounts:
    """One layer of the plan, and its messages forward, by sender, receiver, node; M of them."""

    layer: int
    inputs: int
    outputs: int
    sends: Literal["nothing", "inputs", "outputs"]
    width: int  # of the rows that travel, as the product meets them
    entries: int  # of a row that travel
    backward: bool
    dropout: float
    rows: I64  # [N, N] row the sender
    bits: Mapping[str, NDArray[np.uint8]]  # by direction: [M], backward by sender of the errors
    alpha_squared: F64  # [M]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCounts:
    """The network, as far as work is concerned."""

    kind: Kind
    parameters: int
    hidden: int
    classes: int


def make(
    parts: PartCounts,
    layers: Sequence[LayerCounts],
    model: ModelCounts,
    rates: Rates,
    costs: PairCosts,
    *,
    transport: str,
    graph: str,
    notes: Sequence[str] = (),
) -> Workload:
    """The workload of an epoch. Ranges are not known without a run: each is 1, so variances are relative. MadeError."""
    ranks = len(parts.inner)
    if len(rates.flop_s) != ranks or costs.ranks != ranks:
        raise MadeError(f"a partition over {ranks} ranks, and rates of {len(rates.flop_s)}, costs of {costs.ranks}")
    travelling = [layer for layer in layers if layer.sends != "nothing"]
    exchanges = [_exchange(layer, "forward", parts, model, rates) for layer in travelling]
    exchanges += [_exchange(layer, "backward", parts, model, rates) for layer in reversed(travelling) if layer.backward]
    held = [_held(layer, parts, model) for layer in layers if layer.sends == "nothing"]
    gradient_bytes = FLOAT * model.parameters
    return Workload(
        ranks=ranks,
        exchanges=tuple(exchanges),
        held_s=sum((work.seconds(rates) for work in held), np.zeros(ranks)),
        dense_s=dense(parts, layers, model).seconds(rates),
        weight_gradient_bytes=gradient_bytes,
        weight_gradient_s=allreduce_s(gradient_bytes, costs),
        transport=transport,
        graph=graph,
        notes=("made without a run: compute estimated, ranges taken as 1", *notes),
        inner=parts.inner,
    )


def product(rows: I64, coefficients: I64, width: int, model: ModelCounts) -> Work:
    """A sparse matrix times rows of ``width`` entries."""
    num_bytes = coefficients * float(FLOAT * width + INDEX) + rows * float(2 * FLOAT * width)
    return Work(flop=np.zeros(len(rows)), num_bytes=num_bytes * (3 if model.kind == "gat" else 1))


def projection(rows: I64, inputs: int, outputs: int) -> Work:
    """Rows times W."""
    amount = rows.astype(np.float64)
    return Work(flop=2 * inputs * outputs * amount, num_bytes=FLOAT * (inputs + outputs) * amount)


def coding(rows: I64, num_bytes: F64, entries: int) -> Work:
    """Writing or reading messages: [N] rows, and the bytes of their messages."""
    return Work(flop=np.zeros(len(rows)), num_bytes=2.0 * FLOAT * entries * rows + num_bytes)


def dense(parts: PartCounts, layers: Sequence[LayerCounts], model: ModelCounts) -> Work:
    """All that a rank computes beside products and messages."""
    inner = parts.inner.astype(np.float64)
    rows, none = inner + parts.halo, np.zeros(len(inner))
    total = Work(flop=none, num_bytes=none)
    for layer in layers:
        total += _weights(layer, parts, model)
        if layer.dropout > 0:
            total += Work(flop=MASK_OPERATIONS * layer.inputs * rows, num_bytes=none)
        if layer.layer < len(layers) - 1:
            total += _bytes(BETWEEN * model.hidden * inner)
    total += _bytes(LOSS * model.classes * inner)
    return total + _bytes(np.full(len(inner), float(OPTIMISER * model.parameters)))


def allreduce_s(num_bytes: int, costs: PairCosts) -> float:
    """A ring allreduce: 2 (N - 1) messages of one N-th each, over the slowest pair."""
    n = costs.ranks
    if n == 1:
        return 0.0
    return float(2 * (n - 1) * costs.seconds(np.full((n, n), num_bytes / n)).max())


def at_costs(workload: Workload, known: PairCosts, costs: PairCosts) -> Workload:
    """A workload whose sum of the weight gradients was taken over ``known`` costs, over others.

    It is scaled as ``allreduce_s`` of its bytes is: exact where it was made so; where it was measured, what is not
    bytes and messages is scaled with them.
    """
    before = allreduce_s(workload.weight_gradient_bytes, known)
    if not before:
        return workload
    factor = allreduce_s(workload.weight_gradient_bytes, costs) / before
    return replace(workload, weight_gradient_s=workload.weight_gradient_s * factor)


def _bytes(num_bytes: F64) -> Work:
    return Work(flop=np.zeros(len(num_bytes)), num_bytes=num_bytes)


def _weights(layer: LayerCounts, parts: PartCounts, model: ModelCounts) -> Work:
    """W forward, dW, and the errors of the rows where a layer stands before."""
    ways = 3 if layer.layer else 2
    own = 2 if model.kind == "sage" else 1
    if layer.layer == 0 and parts.feature_entries is not None and layer.sends == "nothing":
        forward = product(parts.inner, parts.feature_entries, layer.outputs, _plain(model)).times(own)
        if parts.halo_feature_entries is not None:
            forward += product(parts.halo, parts.halo_feature_entries, layer.outputs, _plain(model))
        return forward.times(ways)
    rows = parts.inner
    if model.kind == "gat" and layer.sends != "outputs":
        rows = parts.inner + parts.halo
    return projection(rows, layer.inputs, layer.outputs).times(ways * own)


def _plain(model: ModelCounts) -> ModelCounts:
    return ModelCounts(kind="gcn", parameters=model.parameters, hidden=model.hidden, classes=model.classes)


def _held(layer: LayerCounts, parts: PartCounts, model: ModelCounts) -> Work:
    """Products of a layer that exchanges nothing: over local and halo rows."""
    after_w = model.kind == "gat" or parts.feature_entries is not None or layer.outputs < layer.inputs
    if model.kind != "gat" and parts.feature_entries is None and layer.dropout == 0:
        return _bytes(np.zeros(len(parts.inner)))  # aggregated once for the whole run
    width = layer.outputs if after_w else layer.inputs
    work = product(parts.inner, parts.local + parts.remote, width, model)
    return work.times(2) if after_w else work  # the features have no errors to carry back


def _exchange(
    layer: LayerCounts, direction: Literal["forward", "backward"], parts: PartCounts, model: ModelCounts, rates: Rates
) -> Exchange:
    forward = direction == "forward"
    rows = layer.rows if forward else layer.rows.T.copy()
    bits = layer.bits[direction]
    sizes = message_bytes(layer.entries, bits).astype(np.float64)
    ends = np.repeat(np.arange(rows.size), rows.ravel())
    channel = np.bincount(ends, sizes, rows.size).reshape(rows.shape)
    width = layer.outputs if model.kind == "gat" else layer.width
    return Exchange(
        layer=layer.layer,
        direction=direction,
        row_entries=layer.entries,
        rows=rows,
        bits=bits,
        range_squared=np.ones(len(bits)),
        alpha_squared=layer.alpha_squared if forward else np.ones(len(bits)),
        encode_s=coding(rows.sum(axis=1), channel.sum(axis=1), layer.entries).seconds(rates),
        flight_s=np.zeros(len(rows)),
        central_s=product(parts.inner, parts.local, width, model).seconds(rates),
        decode_s=coding(rows.sum(axis=0), channel.sum(axis=0), layer.entries).seconds(rates),
        marginal_s=product(parts.halo, parts.remote, width, model).seconds(rates),
    )


def compute_ratios(made: Workload, recorded: Workload) -> dict[str, float]:
    """By what factor each stage's estimate is off: made over recorded, of the sums over ranks and exchanges.

    MadeError where they are not of the same exchanges. A stage that was not recorded is left out.
    """
    keys = [[(e.layer, e.direction) for e in load.exchanges] for load in (made, recorded)]
    if made.ranks != recorded.ranks or keys[0] != keys[1]:
        raise MadeError(
            f"the estimate is of {made.ranks} ranks and {len(keys[0])} exchanges, the run of {recorded.ranks} and "
            f"{len(keys[1])}: give --graph, -k and --set as the run had them"
        )
    sums = []
    for load in (made, recorded):
        total = {"held": float(load.held_s.sum()), "dense": float(load.dense_s.sum())}
        for stage in ("encode", "central", "decode", "marginal"):
            total[stage] = float(sum(getattr(e, f"{stage}_s").sum() for e in load.exchanges))
        sums.append(total | {"compute": sum(total.values())})
    return {stage: sums[0][stage] / seconds for stage, seconds in sums[1].items() if seconds > 0}
