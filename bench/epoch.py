"""One rank's full-graph training epoch against PyTorch Geometric and against careful plain torch.

    python -m bench.epoch [--threads 1 2] [--repeats 7] [--graphs amazon_computers ...]

GCN and GraphSAGE, 3 layers x 256, LayerNorm, ReLU, dropout 0.5, Adam; alternating repeats in one
process, same threads, same allocator settings; medians. Contestants:

  pyg-edges    torch_geometric.nn.GCNConv / SAGEConv on edge_index: the default choice
  pyg-csr      the same layers on a torch.sparse CSR adjacency: PyG at its best on a CPU
  careful      the best that a careful user writes in plain torch: a Function that keeps the transposed
               CSR, layer 0 aggregated once, dropout masks from random bytes, W first where it narrows
  bitring      this project, one rank

Then where bitring's epoch goes: product (sparse), dense (BLAS), rest; and the sparse product [nodes x 256]
alone, ours and torch's, as a share of the bandwidth limit: every row read once, every sum written once,
the matrix read once, at the bandwidth of a copy of as many bytes.

Needs $BITRING_DATA. Wide features are projected to 602 columns (coauthor_physics, wordnet), alike for all.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.common import file_result
from toolkit import config as configs
from toolkit import report
from toolkit.comm.ledger import by_stage
from toolkit.comm.transport import Nothing
from toolkit.comm.world import Solo
from toolkit.graph import registry
from toolkit.graph.coefficients import gcn_coefficients, mean_coefficients
from toolkit.graph.data import Graph
from toolkit.graph.part import whole
from toolkit.nn.sparse import Csr, csr_tensor
from toolkit.train.process import keep_freed_memory
from toolkit.train.trainer import Trainer

GRAPHS = {"amazon_computers": 0, "coauthor_physics": 602, "wordnet": 602}  # columns after projection; 0: as they are
HIDDEN, LAYERS, DROPOUT = 256, 3, 0.5
Step = Callable[[int], None]


def load(name: str) -> Graph:
    return registry.load(configs.Config(data=configs.Data(name=name, project_to=GRAPHS[name], split="ratio")))


def bitring(graph: Graph, kind: str) -> Step:
    config = configs.Config(
        model=configs.Model(kind=kind, layers=LAYERS, hidden=HIDDEN, norm="layer", dropout=DROPOUT)  # type: ignore[arg-type]
    )
    trainer = Trainer(whole(graph), config, Solo(), Nothing())

    def step(epoch: int) -> None:
        trainer.step(epoch)

    step.trainer = trainer  # type: ignore[attr-defined]
    return step


def tensors(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    features = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    return torch.from_numpy(features), torch.from_numpy(graph.labels), torch.from_numpy(graph.train_mask)


def training(model: nn.Module, graph: Graph) -> Step:
    _, labels, mask = tensors(graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def step(epoch: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model()[mask], labels[mask]).backward()
        optimizer.step()

    return step


class PyG(nn.Module):
    def __init__(self, graph: Graph, kind: str, *, csr: bool) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv, SAGEConv

        widths = [graph.num_features] + [HIDDEN] * (LAYERS - 1) + [graph.num_classes]
        pairs = list(itertools.pairwise(widths))
        self.convs = nn.ModuleList(GCNConv(a, b, cached=True) if kind == "gcn" else SAGEConv(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(LAYERS - 1))
        self.features = tensors(graph)[0]
        n, targets = graph.num_nodes, np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
        if csr:  # rows are targets: what PyG calls adj_t
            ones = torch.ones(graph.num_edges)
            self.edges = csr_tensor(torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices), ones, (n, n))
        else:
            self.edges = torch.from_numpy(np.stack([graph.indices, targets]))

    def forward(self) -> Tensor:
        x = self.features
        for i, conv in enumerate(self.convs):
            x = conv(x, self.edges)
            if i < LAYERS - 1:
                x = F.dropout(F.relu(self.norms[i](x)), DROPOUT, self.training)
        return x


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, matrix, transposed):  # type: ignore[no-untyped-def]
        ctx.transposed = transposed
        return torch.sparse.mm(matrix, rows)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return torch.sparse.mm(ctx.transposed, grad), None, None


class _ByteDropout(torch.autograd.Function):
    """p = 0.5 from the bits of random bytes: a fraction of the draws that F.dropout makes."""

    @staticmethod
    def forward(ctx, rows):  # type: ignore[no-untyped-def]
        draws = torch.randint(0, 256, ((rows.numel() + 7) // 8,), dtype=torch.uint8)
        bits = (draws[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        ctx.mask = bits.view(-1)[: rows.numel()].view_as(rows).mul(2)
        return rows * ctx.mask

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad * ctx.mask


class Careful(nn.Module):
    def __init__(self, graph: Graph, kind: str) -> None:
        super().__init__()
        part = whole(graph)
        matrix = (gcn_coefficients(part) if kind == "gcn" else mean_coefficients(part)).astype(np.float32)
        self.matrix, self.transposed = (
            csr_tensor(*(torch.from_numpy(a) for a in (m.indptr, m.indices, m.data)), m.shape)
            for m in (matrix, matrix.T.tocsr())
        )
        widths = [graph.num_features] + [HIDDEN] * (LAYERS - 1) + [graph.num_classes]
        pairs = list(itertools.pairwise(widths))
        self.weights = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.own = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairs) if kind == "sage" else None
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(LAYERS - 1))
        self.features = tensors(graph)[0]
        self.aggregated = torch.sparse.mm(self.matrix, self.features)

    def forward(self) -> Tensor:
        x = self.features
        for i, linear in enumerate(self.weights):
            if i == 0:
                y = linear(self.aggregated)
            elif i == LAYERS - 1:
                y = _Product.apply(x @ linear.weight.T, self.matrix, self.transposed) + linear.bias
            else:
                y = linear(_Product.apply(x, self.matrix, self.transposed))
            x = y if self.own is None else y + self.own[i](x)
            if i < LAYERS - 1:
                x = _ByteDropout.apply(F.relu(self.norms[i](x)))
        return x


CONTESTANTS: dict[str, Callable[[Graph, str], Step]] = {
    "pyg-edges": lambda graph, kind: training(PyG(graph, kind, csr=False), graph),
    "pyg-csr": lambda graph, kind: training(PyG(graph, kind, csr=True), graph),
    "careful": lambda graph, kind: training(Careful(graph, kind), graph),
    "bitring": bitring,
}


def measure(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median seconds of each contestant; alternating, after a warm-up of two."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 2):
        for name, step in steps.items():
            begin = time.perf_counter()
            step(repeat)
            if repeat >= 2:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def split(step: Step, repeats: int) -> dict[str, float]:
    """Seconds of an epoch of ours in sparse products, in BLAS, and in the rest (under the profiler)."""
    ledger = step.trainer.ledger  # type: ignore[attr-defined]
    ledger.take_seconds()
    begin = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for epoch in range(repeats):
            step(epoch)
    total_s = (time.perf_counter() - begin) / repeats
    blas = ("aten::mm", "aten::addmm", "aten::addmm_")
    dense_s = sum(e.self_cpu_time_total for e in profile.key_averages() if e.key in blas) / 1e6 / repeats
    stages = by_stage(ledger.take_seconds())
    product_s = (stages["central"] + stages.get("marginal", 0.0)) / repeats
    return {"product_s": product_s, "dense_s": dense_s, "rest_s": total_s - product_s - dense_s}


def product_share(graph: Graph, kind: str, repeats: int) -> dict[str, float]:
    """The product [n x 256] of ours and of torch: the share that each reaches of the bandwidth limit."""
    part = whole(graph)
    matrix = (gcn_coefficients(part) if kind == "gcn" else mean_coefficients(part)).astype(np.float32)
    ours = Csr.of(matrix, torch.float32)
    rows = torch.randn(graph.num_nodes, HIDDEN)
    theirs = csr_tensor(ours.indptr, ours.indices.long(), ours.values, ours.shape)
    least_bytes = 2 * rows.nbytes + 8 * matrix.nnz + 8 * graph.num_nodes  # a copy reads and writes as well
    source, target = torch.ones(least_bytes // 8), torch.empty(least_bytes // 8)
    contestants: dict[str, Step] = {
        "copy": lambda _: target.copy_(source),
        "bitring": lambda _: ours @ rows,
        "torch": lambda _: torch.sparse.mm(theirs, rows),
    }
    median_s = measure(contestants, repeats)
    return {who: median_s["copy"] / median_s[who] for who in ("bitring", "torch")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--without", nargs="*", default=[], help="contestants to leave out")
    args = parser.parse_args()
    keep_freed_memory()
    results = []
    for name in args.graphs:
        graph = load(name)
        for kind in ("gcn", "sage"):
            for threads in args.threads:
                torch.set_num_threads(threads)
                steps = {who: make(graph, kind) for who, make in CONTESTANTS.items() if who not in args.without}
                median_s = measure(steps, args.repeats)
                parts_s, shares = split(steps["bitring"], 3), product_share(graph, kind, args.repeats)
                results.append(
                    {"graph": name, "kind": kind, "threads": threads, "median_s": median_s}
                    | {"split": parts_s, "product_share_of_bandwidth": shares}
                )
                print(
                    f"{name} {kind} {threads} threads: { ({k: report.seconds(v) for k, v in median_s.items()}) }",
                    flush=True,
                )
                print(
                    f"    of bitring's: { ({k[:-2]: report.seconds(v) for k, v in parts_s.items()}) }; product at "
                    f"{shares['bitring']:.0%} of the bandwidth limit, torch's at {shares['torch']:.0%}",
                    flush=True,
                )
    print()
    for threads in args.threads:
        print(f"{threads} threads, bitring over each, geometric mean over graphs and models:")
        for who in results[0]["median_s"]:
            ratios = [r["median_s"]["bitring"] / r["median_s"][who] for r in results if r["threads"] == threads]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"  {who:10} {statistics.geometric_mean(ratios):.2f}   ({each})")
    print(file_result("epoch", {"repeats": args.repeats, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
