"""No operation of a training step mixes tensors of the host and of a device.

The device is torch's "meta", under fake tensors: operations compute nothing but shapes, and refuse arguments
of two devices as a GPU would. What crosses on purpose does so in comm/way.py alone.
"""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.graphs import random_graph
from toolkit import config as configs
from toolkit import native
from toolkit.comm.transport import Arrived
from toolkit.comm.way import DeviceWay
from toolkit.comm.world import Solo
from toolkit.graph.part import build_parts
from toolkit.train.loss import training_loss
from toolkit.train.trainer import Trainer

DEVICE = torch.device("meta")


class Kernels:
    """Device kernels that look where their arguments lie."""

    def __init__(self):
        self.called = set()

    def __call__(self, name, *arguments):
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        assert all(t.device == DEVICE and t.is_contiguous() for t in tensors), name
        self.called.add(name)


class Moment:
    def synchronize(self):
        pass


class FakeDevice:
    """comm/device.py: Device."""

    at = DEVICE

    def __init__(self):
        self.kernels = Kernels()

    def pinned(self, count, dtype=torch.uint8):
        return torch.empty(count, dtype=dtype)

    def new_rows(self, count, width, dtype, *, zero):
        return torch.zeros(count, width, dtype=dtype, device=DEVICE)

    def fence(self):
        pass

    def submit(self, work, *tensors):
        assert all(t.device == DEVICE for t in tensors)
        work()

    def mark(self):
        return Moment()

    def join(self, event):
        pass


class Echo:
    """A transport that looks where its buffers lie; layer 0's, held since the start, are the host's."""

    name = "echo"

    def __init__(self, direct):
        self.takes_device_memory = direct

    def start(self, payload, send_bytes, into, receive_bytes, ready=None):
        expected = DEVICE if self.takes_device_memory and ready is not None else torch.device("cpu")
        assert payload.device == into.device == expected
        return Arrived(into, 0.0)


class OneOfTwo(Solo):
    size = 2


class Product:
    """A sparse matrix on the device: fake tensors have no sparse product."""

    def __init__(self, indptr, indices, values, size):
        assert indptr.device == indices.device == values.device == DEVICE
        self.values, self.size = values, size

    def __matmul__(self, rows):
        assert rows.device == DEVICE and rows.shape[0] == self.size[1]
        return rows.new_zeros(self.size[0], rows.shape[1]) + self.values.sum()


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(DeviceWay, "check", lambda self: None)  # it reads a value
    monkeypatch.setattr("toolkit.nn.sparse.csr_tensor", Product)
    monkeypatch.setattr("toolkit.nn.attention.csr_tensor", Product)
    monkeypatch.setattr(torch.Tensor, "numpy", zeros_of_the_host)
    monkeypatch.setattr(torch.nn.Module, "to", moved)
    real = torch.from_numpy
    with FakeTensorMode() as mode:
        monkeypatch.setattr(torch, "from_numpy", lambda array: mode.from_tensor(real(array)))
        yield


def zeros_of_the_host(tensor):
    """Tensor.numpy for fake tensors, which as a GPU's refuses what does not lie on the host."""
    if tensor.device.type != "cpu":
        raise TypeError(f"can't convert a tensor of {tensor.device} to numpy")
    return np.zeros(tensor.shape, np.float32)


def moved(module, at, dtype):
    """nn.Module.to for fake tensors."""
    for one in module.modules():
        for name, p in one.named_parameters(recurse=False):
            setattr(one, name, torch.nn.Parameter(torch.empty(p.shape, dtype=dtype, device=at)))
        for name, b in one.named_buffers(recurse=False):
            setattr(one, name, torch.empty(b.shape, dtype=b.dtype, device=at))
    return module


def sparse_features(graph):
    features = sp.random(graph.num_nodes, 400, density=0.02, random_state=0, format="csr", dtype=np.float32)
    return dataclasses.replace(graph, features=features)


RUNS = {
    "gcn, 2 bits": ({"norm": "layer"}, {"codec": "quantised", "bits": 2}, False),
    "gcn, elu, residual": ({"activation": "elu", "residual": True, "input_dropout": 0.3}, {"codec": "float32"}, True),
    "sage, batch norm": ({"kind": "sage", "norm": "batch"}, {"codec": "float32", "plan": "paper"}, False),
    "sage, drawn widths": ({"kind": "sage"}, {"codec": "quantised", "widths": "uniform"}, True),
    "gat, bfloat16": ({"kind": "gat"}, {"codec": "bfloat16"}, False),
    "gat, 4 bits": ({"kind": "gat", "heads": 2}, {"codec": "quantised"}, True),
    "sparse features": ({"input_dropout": 0.3}, {"codec": "quantised"}, False),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_training_step_stays_on_the_device(fake, name):
    model, method, direct = RUNS[name]
    graph = sparse_features(random_graph(60)) if name == "sparse features" else random_graph(60)
    part = next(iter(build_parts(graph, np.arange(60) % 2, 2)))
    config = configs.Config(
        model=configs.Model(**({"layers": 3, "hidden": 16} | model)), method=configs.Method(**method)
    )
    device = FakeDevice()
    trainer = Trainer(part, config, OneOfTwo(), Echo(direct), device=device)
    told = []
    trainer.engine.trace = lambda step, direction, ranges: told.append(ranges)
    logits = trainer.engine.forward(trainer.network, "train", 0, 0)
    loss = training_loss(logits, torch.from_numpy(part.labels).to(DEVICE))
    loss.backward()
    assert loss.device == logits.device == DEVICE
    assert all(p.grad is not None and p.grad.device == DEVICE for p in trainer.parameters)
    trainer.sum_gradients([p.grad for p in trainer.parameters])
    trainer.optimizer.step()
    trainer.network.eval()
    with torch.no_grad():
        assert trainer.engine.forward(trainer.network, "evaluate", 0, 0).device == DEVICE
    assert told and all(ranges.device.type == "cpu" for ranges in told)
    assert device.kernels.called == {"quantise_f32", "dequantise_f32"}


def test_mixing_would_be_noticed(fake):
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(3, device=DEVICE) + torch.zeros(3)
    with pytest.raises(TypeError, match="numpy"):
        torch.zeros(3, device=DEVICE).numpy()
