"""The one-process model equals PyTorch Geometric's layers with the same weights, forward and gradients."""

import dataclasses
import importlib
import os

import numpy as np
import pytest
import torch

from tests.support.graphs import random_graph, with_edges
from toolkit import config as configs
from toolkit.comm.transport import Nothing
from toolkit.comm.world import Solo
from toolkit.graph.part import whole
from toolkit.train.trainer import Trainer


@pytest.fixture
def pyg():
    """Skips where torch-geometric is not installed, a development requirement; fails where it was asked for."""
    if os.environ.get("BITRING_DEV") != "1":
        pytest.importorskip("torch_geometric.nn")
    return importlib.import_module("torch_geometric.nn")


def trainer_of(graph, kind, **model):
    config = configs.Config(
        model=configs.Model(kind=kind, layers=2, hidden=12, dropout=0.0, **model),
        train=configs.Train(dtype="float64"),
    )
    trainer = Trainer(whole(graph), config, Solo(), Nothing())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # biases start at zero: give them something to get wrong
        for p in trainer.parameters:
            p.uniform_(-0.5, 0.5, generator=generator)
    return trainer


def edge_index(graph):
    targets = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    return torch.from_numpy(np.stack([graph.indices, targets]))


def compare(trainer, graph, layers, copied):
    """``copied``: pairs of (our parameter, theirs, whether theirs is transposed)."""
    with torch.no_grad():
        for ours, theirs, transposed in copied:
            theirs.copy_((ours.T if transposed else ours).reshape(theirs.shape))
    x, edges = torch.from_numpy(graph.features).double(), edge_index(graph)
    hidden = layers[0](x, edges).relu()
    expected = layers[1](hidden, edges)
    found = trainer.engine.forward(trainer.network, "evaluate", 0, 0)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)

    mask, labels = torch.from_numpy(graph.train_mask), torch.from_numpy(graph.labels)
    torch.nn.functional.cross_entropy(expected[mask], labels[mask]).backward()
    trainer.gradients(0)
    assert all(theirs.grad.abs().max() > 0 for _, theirs, _ in copied)
    for ours, theirs, transposed in copied:
        grad = theirs.grad.reshape(ours.T.shape).T if transposed else theirs.grad.reshape(ours.shape)
        assert torch.allclose(ours.grad, grad, rtol=1e-9, atol=1e-12)


GRAPHS = {
    "undirected": random_graph(60, 7),
    "directed": random_graph(60, 7, directed=True),
    "loops": with_edges(random_graph(5, 7, train_share=0.5), [0, 0, 1, 2, 2, 3], [0, 1, 2, 2, 3, 1]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_gcn(name, pyg):
    graph = GRAPHS[name]
    trainer = trainer_of(graph, "gcn")
    layers = [pyg.GCNConv(7, 12).double(), pyg.GCNConv(12, 3).double()]
    copied = []
    for ours, theirs in zip(trainer.network.layers, layers, strict=True):
        copied += [(ours.weight, theirs.lin.weight, True), (ours.bias, theirs.bias, False)]
    compare(trainer, graph, layers, copied)


@pytest.mark.parametrize("name", GRAPHS)
def test_sage(name, pyg):
    graph = GRAPHS[name]
    trainer = trainer_of(graph, "sage")
    layers = [pyg.SAGEConv(7, 12).double(), pyg.SAGEConv(12, 3).double()]
    copied = []
    for ours, theirs in zip(trainer.network.layers, layers, strict=True):
        copied += [
            (ours.weight, theirs.lin_l.weight, True),
            (ours.bias, theirs.lin_l.bias, False),
            (ours.weight_self, theirs.lin_r.weight, True),
        ]
    compare(trainer, graph, layers, copied)


@pytest.mark.parametrize("name", ["undirected", "directed"])
def test_gat(name, pyg):
    graph = GRAPHS[name]
    trainer = trainer_of(graph, "gat", heads=4, out_heads=2)
    layers = [pyg.GATConv(7, 3, heads=4).double(), pyg.GATConv(12, 3, heads=2, concat=False).double()]
    copied = []
    for ours, theirs in zip(trainer.network.layers, layers, strict=True):
        copied += [
            (ours.weight, theirs.lin.weight, True),
            (ours.attend_source, theirs.att_src, False),
            (ours.attend_target, theirs.att_dst, False),
            (ours.bias, theirs.bias, False),
        ]
    compare(trainer, graph, layers, copied)


def test_layer_norm_and_elu_between_layers():
    graph = random_graph(30, 7)
    trainer = trainer_of(graph, "gcn", norm="layer", activation="elu")
    first, second = trainer.network.layers
    a = dense_gcn(graph)
    x = torch.from_numpy(graph.features).double()
    hidden = a @ x @ first.weight + first.bias
    norm = trainer.network.norms[0]
    hidden = (hidden - hidden.mean(1, keepdim=True)) / (hidden.var(1, keepdim=True, unbiased=False) + norm.eps).sqrt()
    hidden = torch.where((h := hidden * norm.weight + norm.bias) > 0, h, h.exp() - 1)
    expected = a @ (hidden @ second.weight) + second.bias
    assert torch.allclose(trainer.engine.forward(trainer.network, "evaluate", 0, 0), expected, atol=1e-10)


def dense_gcn(graph):
    n = graph.num_nodes
    a = torch.eye(n, dtype=torch.float64)
    for v in range(n):
        a[v, torch.from_numpy(graph.indices[graph.indptr[v] : graph.indptr[v + 1]])] = 1
    root = a.sum(1).rsqrt()
    return root[:, None] * a * root[None, :]


def test_dropout_keeps_the_mean_and_scales_what_it_keeps():
    """One GCN layer on isolated nodes is x W: averaged over epochs, dropout must not change it."""
    graph = with_edges(random_graph(4, 10, train_share=1.0), [], [])
    config = configs.Config(model=configs.Model(layers=1, input_dropout=0.4), train=configs.Train(dtype="float64"))
    trainer = Trainer(whole(graph), config, Solo(), Nothing())
    plain = trainer.engine.forward(trainer.network, "evaluate", 0, 0)
    with torch.no_grad():
        draws = torch.stack([trainer.engine.forward(trainer.network, "train", 0, epoch) for epoch in range(3000)])
    standard_error = draws.std(0) / 3000**0.5
    assert ((draws.mean(0) - plain).abs() < 4.5 * standard_error).all()
    assert (standard_error > 0).all()


def test_sparse_and_dense_features_give_the_same():
    import scipy.sparse as sp

    graph = random_graph(40)
    dense = trainer_of(graph, "gcn").gradients(0).loss
    sparse = trainer_of(dataclasses.replace(graph, features=sp.csr_matrix(graph.features)), "gcn").gradients(0).loss
    assert dense == sparse


def test_batch_normalisation_equals_torchs():
    """Training and running statistics, forward and gradients, as torch.nn.BatchNorm1d has them."""
    from toolkit.nn.norm import SyncBatchNorm

    ours, theirs = SyncBatchNorm(6, Solo()).double(), torch.nn.BatchNorm1d(6).double()
    with torch.no_grad():
        ours.weight.uniform_(0.5, 2)
        theirs.weight.copy_(ours.weight)
    for _ in range(3):
        rows = torch.randn(20, 6, dtype=torch.float64) * 3 + 2
        a, b = rows.clone().requires_grad_(), rows.clone().requires_grad_()
        weight = torch.randn(20, 6, dtype=torch.float64)
        (ours(a) * weight).sum().backward()
        (theirs(b) * weight).sum().backward()
        assert torch.allclose(a.grad, b.grad, atol=1e-12)
    assert torch.allclose(ours.weight.grad, theirs.weight.grad)
    ours.eval(), theirs.eval()
    assert torch.allclose(ours(rows), theirs(rows), atol=1e-12)


def test_learning_rates():
    from toolkit.train.trainer import learning_rate_factor

    def factors(**train):
        return [round(learning_rate_factor(e, configs.Train(epochs=8, **train)), 3) for e in range(8)]

    assert factors() == [1.0] * 8
    assert factors(schedule="linear", warmup_epochs=3) == [0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2]
    assert factors(schedule="cosine") == [1.0, 0.962, 0.854, 0.691, 0.5, 0.309, 0.146, 0.038]
