"""One rank's graph in memory, ready for forward passes under a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.comm import codec as codecs
from toolkit.comm.device import Device
from toolkit.comm.halo import Crossing, Nodes, Noise, RangeTrace, RowTap, make_masks, masked_halo
from toolkit.comm.layout import Layout, Listing, Route, host_buffer, make_layout, make_route
from toolkit.comm.ledger import Direction, Ledger
from toolkit.comm.transport import Transport
from toolkit.comm.way import DeviceWay, HostWay, Way
from toolkit.comm.widths import UNTOUCHED, Widths
from toolkit.errors import UserError
from toolkit.graph.coefficients import gcn_coefficients, mean_coefficients, one_loop_each
from toolkit.graph.data import Features
from toolkit.graph.part import Part
from toolkit.nn.attention import Edges
from toolkit.nn.features import Rows, SparseRows, stays_sparse
from toolkit.nn.model import Network
from toolkit.nn.passage import Crossed, Held, Passage, Source, aggregate_once
from toolkit.nn.sparse import CPU, SparseMatrix
from toolkit.plan import LayerShape, LayerStep, PassKind, Plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adjacency:
    """The local edges in the form that the model wants."""

    local: SparseMatrix | None  # [n, n] coefficients (gcn, sage)
    halo: SparseMatrix | None  # [n, h]
    edges: tuple[Edges, ...]  # gat: from local rows, from halo rows

    @staticmethod
    def of(part: Part, kind: str, dtype: torch.dtype, at: torch.device = CPU) -> Adjacency:
        if kind == "gat":
            return Adjacency(local=None, halo=None, edges=_attention_edges(part, at))
        matrix = gcn_coefficients(part) if kind == "gcn" else mean_coefficients(part)
        return Adjacency(
            local=SparseMatrix.of(matrix[:, : part.num_inner], dtype, at),
            halo=SparseMatrix.of(matrix[:, part.num_inner :], dtype, at),
            edges=(),
        )


def _attention_edges(part: Part, at: torch.device) -> tuple[Edges, Edges]:
    indptr, sources = one_loop_each(part)
    n = part.num_inner
    targets = np.repeat(np.arange(n), np.diff(indptr))
    far = sources >= n
    return (
        Edges.of(targets[~far], sources[~far], n, n, at),
        Edges.of(targets[far], sources[far] - n, n, part.num_halo, at),
    )


@dataclass(slots=True, kw_only=True, eq=False)
class Engine:
    """Builds the passages of a pass and runs a network through them."""

    part: Part
    kind: str
    shapes: Sequence[LayerShape]
    plan: Plan
    transport: Transport
    ledger: Ledger
    codec: codecs.Codec
    widths: Widths
    dtype: torch.dtype
    device: Device | None = None  # None: the CPU
    coded: Callable[[PassKind, int], bool]  # whether a layer's rows go by the codec; else exactly
    overlap: bool = True
    trace: RangeTrace | None = None
    tap: RowTap | None = None
    draw: int = 0  # which noise (train/noise.py)
    adjacency: Adjacency = field(init=False)
    features: Rows = field(init=False)  # [n, D]
    halo_features: Rows | None = field(init=False, default=None)  # [h, D] where layer 0 is held
    aggregated: Tensor | None = field(init=False, default=None)  # [n, D] layer 0 without dropout
    routes: dict[tuple[PassKind, int], Route] = field(init=False)
    masked: dict[tuple[PassKind, int], tuple[Nodes, Nodes]] = field(init=False)  # whose masks: inner, halo
    ways: dict[tuple[PassKind, int], tuple[int, dict[Direction, Way]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        at = self.at
        self.adjacency = Adjacency.of(self.part, self.kind, self.dtype, at)
        crosses = any(steps[0].sends == "inputs" for steps in (self.plan.train, self.plan.evaluate))
        sparse = stays_sparse(self.part.features) and not crosses
        features = self.part.features
        self.features = SparseRows.of(features, self.dtype, at) if sparse else self._dense(features).to(at)
        steps: list[tuple[PassKind, LayerStep]] = [("train", step) for step in self.plan.train]
        steps += [("evaluate", step) for step in self.plan.evaluate]
        self.routes = {(kind, step.layer): make_route(self.part, step) for kind, step in steps}
        inner = self._nodes(self.part.nodes)
        self.masked = {
            (kind, step.layer): (inner, self._nodes(masked_halo(self.part, step, self.routes[kind, step.layer])))
            for kind, step in steps
        }
        if self.plan.train[0].sends == "nothing":
            self._hold_layer_0()

    @property
    def at(self) -> torch.device:
        """Where rows and weights lie."""
        return CPU if self.device is None else self.device.at

    def _nodes(self, nodes: NDArray[np.int64]) -> Nodes:
        return nodes if self.device is None else torch.from_numpy(nodes).to(self.at)

    def _hold_layer_0(self) -> None:
        """Layer 0's rows never change: exchange them once, and where no mask touches them, aggregate them once."""
        part, codec = self.part, codecs.exact(self.dtype)
        everything = LayerStep(
            layer=0, sends="inputs", width=part.num_features, entries=part.num_features, dropout=0.0, backward=False,
            max_reach=None,
        )  # fmt: skip
        route = make_route(part, everything)
        out, into = (
            make_layout(listing, UNTOUCHED.bits(listing, 0, "forward", 0), part.num_features, codec.sizes)
            for listing in (route.lent, route.borrowed)
        )
        self.ledger.count("setup", 0, "forward", out.bytes_by_peer)
        sent = self._dense(part.features[part.send_rows])
        payload = sent.contiguous().view(-1).view(torch.uint8)
        pending = self.transport.start(payload, out.bytes_by_peer, into.buffer, into.bytes_by_peer)
        halo_features = pending.wait().view(self.dtype).view(-1, part.num_features)
        local, halo = self.adjacency.local, self.adjacency.halo
        if isinstance(self.features, SparseRows):
            self.halo_features = SparseRows.of(sp.csr_matrix(halo_features.numpy()), self.dtype, self.at)
            return
        halo_features = halo_features.to(self.at)
        if local is not None and halo is not None:
            self.aggregated = aggregate_once(local, halo, self.features, halo_features)
        if self.aggregated is None or self.plan.train[0].dropout > 0:
            self.halo_features = halo_features

    def forward(self, network: Network, kind: PassKind, seed: int, epoch: int) -> Tensor:
        """Logits of the inner nodes: [n, classes]. ``seed`` and ``epoch`` key the dropout masks."""
        steps = self.plan.train if kind == "train" else self.plan.evaluate
        passages = [self._passage(step, kind, seed, epoch) for step in steps]
        logits: Tensor = network(self.features, passages, self.adjacency.edges)
        return logits

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Passes of the same plan that lose nothing."""
        kept = self.codec, self.widths, self.ways
        self.codec, self.widths, self.ways = codecs.exact(self.dtype), UNTOUCHED, {}
        try:
            yield
        finally:
            self.codec, self.widths, self.ways = kept

    def _passage(self, step: LayerStep, kind: PassKind, seed: int, epoch: int) -> Passage:
        route = self.routes[kind, step.layer]
        with self.ledger.stage("masks", step.layer):
            inner, halo = self.masked[kind, step.layer]
            masks = make_masks(inner, halo, step, self.shapes[step.layer].inputs, seed, epoch)
        aggregated = self.aggregated if step.sends == "nothing" and masks is None else None
        rows: Source
        if step.sends == "nothing":
            # where the aggregate is held, nobody asks for the halo rows
            rows = Held(torch.empty(0) if self.halo_features is None else self.halo_features, masks)
        else:
            crossing = Crossing(
                step=step,
                num_halo=route.num_halo,
                ways=self._ways(step, kind, epoch),
                masks=masks if step.sends == "inputs" else None,
                noise=Noise(seed=seed, epoch=epoch, draw=self.draw),
                ledger=self.ledger,
                phase=kind,
                rank=self.part.rank,
                overlap=self.overlap,
                trace=self.trace if kind == "train" else None,
                tap=self.tap if kind == "train" else None,
            )
            rows = Crossed(crossing)
        return Passage(
            step=step,
            rows=rows,
            masks=masks,
            local=self.adjacency.local,
            halo=self.adjacency.halo,
            ledger=self.ledger,
            aggregated=aggregated,
        )

    def _codec(self, step: LayerStep, kind: PassKind) -> codecs.Codec:
        codec: codecs.Codec = self.codec if self.coded(kind, step.layer) else codecs.exact(self.dtype)
        return codec

    def _ways(self, step: LayerStep, kind: PassKind, epoch: int) -> dict[Direction, Way]:
        """The layouts in force, made anew when the widths change."""
        codec = self._codec(step, kind)
        widths = self.widths if codec is self.codec else UNTOUCHED
        period, ways = self.ways.get((kind, step.layer), (-1, {}))
        if period == widths.period(epoch):
            return ways
        route = self.routes[kind, step.layer]

        def layout(listing: Listing, direction: Direction, *, grouped: bool = False) -> Layout:
            bits = widths.bits(listing, step.layer, direction, epoch)
            new_buffer = host_buffer if self.device is None else self.device.pinned
            return make_layout(listing, bits, step.entries, codec.sizes, grouped=grouped, new_buffer=new_buffer)

        def way(out: Layout, into: Layout) -> Way:
            if self.device is None:
                return HostWay(out=out, into=into, codec=codec, transport=self.transport)
            return DeviceWay(out, into, codec, self.transport, self.device)

        ways = {"forward": way(layout(route.lent, "forward"), layout(route.borrowed, "forward"))}
        if step.backward:
            into = layout(route.lent, "backward", grouped=True)
            ways["backward"] = way(layout(route.borrowed, "backward"), into)
        self.ways[kind, step.layer] = widths.period(epoch), ways
        return ways

    def _dense(self, features: Features) -> Tensor:
        """Dense rows in the run's arithmetic; UserError where they can't fit."""
        need = self.dtype.itemsize * features.shape[0] * features.shape[1]
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        if isinstance(features, sp.csr_matrix) and need > free:
            raise UserError(
                f"{features.shape[0]:,} x {features.shape[1]:,} features are {need / 1e9:.1f} GB dense, and "
                f"{free / 1e9:.1f} GB are free; set data.project_to (256, say), or use more ranks on more hosts"
            )
        rows = features.toarray() if isinstance(features, sp.csr_matrix) else features
        return torch.from_numpy(rows).to(self.dtype)
