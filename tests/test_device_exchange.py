"""Training through a device's exchange equals training on the CPU bit for bit, over an emulated device."""

import ctypes
import dataclasses
import functools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests.support.emulated_device import EmulatedDevice
from tests.support.graphs import random_graph
from tests.support.local_world import LocalTransport, run_ranks
from toolkit import cli, keyed, native
from toolkit import config as configs
from toolkit.comm import device as devices
from toolkit.comm.codec import columns_on_device, columns_on_host
from toolkit.comm.device_mask import dropout_mask
from toolkit.comm.ledger import Ledger
from toolkit.comm.reduce import FlatSum
from toolkit.comm.world import Solo
from toolkit.errors import UserError
from toolkit.graph.part import build_parts
from toolkit.nn.sparse import SparseMatrix, add_product, multiply
from toolkit.train.trainer import Trainer

ROOT = Path(__file__).parent.parent
EPOCHS = 3
CODECS = {
    "float32": {"codec": "float32"},
    "bfloat16": {"codec": "bfloat16"},
    "8 bits": {"codec": "quantised", "bits": 8},
    "4 bits": {"codec": "quantised", "bits": 4},
    "2 bits": {"codec": "quantised", "bits": 2},
    "1 bit": {"codec": "quantised", "bits": 1},
    "drawn": {"codec": "quantised", "widths": "uniform", "period": 2},
}
GRAPH = random_graph(90, train_share=0.5)
AVAILABLE = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The device kernels compiled for this process."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing, and the emulated device kernels are built by it")
    out = tmp_path_factory.mktemp("emulated")
    done = subprocess.run(["make", "-s", "-C", ROOT / "cuda", "emulated", f"OUT={out}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return ctypes.CDLL(str(out / "libbitring_emulated.so"))


def config_of(codec, plan="exact", **model):
    shape = {"layers": 3, "hidden": 16, "norm": "layer"} | model
    return configs.Config(model=configs.Model(**shape), method=configs.Method(plan=plan, **CODECS[codec]))


def train(config, ranks, make_device, direct=False, graph=GRAPH):
    """What every rank has after some epochs: losses, weights, scores, bytes sent, ranges."""
    owned = list(build_parts(graph, np.random.default_rng(1).integers(0, ranks, graph.num_nodes), ranks))

    def work(world, transport):
        transport.takes_device_memory = direct
        ranges = {}
        trainer = Trainer(owned[world.rank], config, world, transport, device=make_device())

        def trace(step, direction, found):
            ranges[step.layer, direction] = found.tolist()

        trainer.engine.trace = trace
        losses = [trainer.step(epoch).loss for epoch in range(EPOCHS)]
        scores = {name: dataclasses.astuple(of)[:4] for name, of in trainer.evaluate().items()}
        weights = [p.detach().cpu().numpy().tobytes() for p in trainer.parameters]
        sent = {key: counts.tolist() for key, counts in trainer.ledger.sent.items()}
        return losses, weights, scores, sent, ranges

    return run_ranks(ranks, work)


@functools.cache
def on_the_cpu(codec, ranks, plan="exact", **model):
    return train(config_of(codec, plan, **model), ranks, lambda: None)


@pytest.mark.parametrize("kernels", [True, False], ids=["device kernels", "host kernels"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_device_trains_to_the_same_bits(emulated, ranks, codec, kernels):
    """Where device kernels are built, and where the host has to quantise."""
    found = train(config_of(codec), ranks, lambda: EmulatedDevice.of(emulated if kernels else None))
    assert found == on_the_cpu(codec, ranks)
    if ranks > 1:
        assert all(ranges for *_, ranges in found)


@pytest.mark.parametrize("kind", ["sage", "gat"])
@pytest.mark.parametrize("plan", ["exact", "paper"])
def test_other_models_and_plans(emulated, kind, plan):
    found = train(config_of("4 bits", plan, kind=kind), 2, lambda: EmulatedDevice.of(emulated))
    assert found == on_the_cpu("4 bits", 2, plan, kind=kind)


@pytest.mark.parametrize("codec", ["float32", "bfloat16", "2 bits"])
def test_batch_normalisation_and_an_mpi_that_takes_device_memory(emulated, codec):
    found = train(config_of(codec, norm="batch"), 3, lambda: EmulatedDevice.of(emulated), direct=True)
    assert found == on_the_cpu(codec, 3, norm="batch")


def test_rows_wider_than_the_kernels_take(emulated, monkeypatch):
    """The host quantises those, whatever is built."""
    expected = on_the_cpu("2 bits", 2)
    monkeypatch.setattr(native, "WIDEST_ROW", 7)
    for direct in (False, True):
        assert train(config_of("2 bits"), 2, lambda: EmulatedDevice.of(emulated), direct) == expected


def test_float64_rows(emulated):
    config = config_of("float32")
    wide = dataclasses.replace(config, train=configs.Train(dtype="float64"))
    assert train(wide, 2, lambda: EmulatedDevice.of(emulated)) == train(wide, 2, lambda: None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_a_gpu_trains_to_the_same_losses(codec, kind):
    """To rounding: a GPU sums in another order."""
    on_gpu = train(config_of(codec, kind=kind), 2, lambda: devices.Cuda(0))
    for ours, cpu in zip(on_gpu, on_the_cpu(codec, 2, kind=kind), strict=True):
        assert ours[0] == pytest.approx(cpu[0], rel=1e-3)
        assert ours[3] == cpu[3]


def test_messages_are_under_way_while_local_rows_are_multiplied(emulated):
    """The picture on top of comm/device.py, forward and backward, for one crossing."""
    owned = list(build_parts(GRAPH, np.arange(GRAPH.num_nodes) % 2, 2))

    class Told(LocalTransport):
        def __init__(self, world, told):
            super().__init__(world)
            self.told = told

        def start(self, payload, send_bytes, into, receive_bytes, ready=None):
            self.told.append("start")
            pending = super().start(payload, send_bytes, into, receive_bytes, ready)
            waited = pending.wait

            def wait():
                self.told.append("wait")
                return waited()

            pending.wait = wait
            return pending

    class ToldLedger(Ledger):
        def stage(self, name, layer=-1, direction="forward"):
            if name in ("central", "marginal"):
                device_of[self].told.append(name)
            return super().stage(name, layer, direction)

        __hash__ = object.__hash__

    device_of = {}

    def work(world, transport):
        device = EmulatedDevice.of(emulated)
        trainer = Trainer(
            owned[world.rank], config_of("4 bits", layers=2), world, Told(world, device.told), device=device
        )
        ledger = ToldLedger(ranks=2)
        device_of[ledger] = device
        trainer.ledger = trainer.engine.ledger = ledger
        device.told.clear()
        trainer.gradients(0)
        return device.told

    forward = ["fence", "submit encode", "start", "central", "wait", "submit decode", "join", "marginal"]
    backward = ["marginal", "fence", "submit encode", "start", "central", "wait", "fence", "submit decode", "join"]
    for told in run_ranks(2, work):
        assert told == forward + backward


@pytest.mark.parametrize("kernels", [True, False], ids=["device kernels", "host kernels"])
def test_a_row_that_is_not_finite_is_named(emulated, kernels):
    owned = list(build_parts(GRAPH, np.arange(GRAPH.num_nodes) % 2, 2))

    def work(world, transport):
        device = EmulatedDevice.of(emulated if kernels else None)
        trainer = Trainer(owned[world.rank], config_of("4 bits"), world, transport, device=device)
        with torch.no_grad():
            trainer.network.layers[0].bias[:] = np.nan
        trainer.gradients(6)

    with pytest.raises(UserError, match=r"^epoch 7, layer 1, forward, at rank \d: the row of node \d+ holds a NaN"):
        run_ranks(2, work)


@pytest.mark.parametrize("at", AVAILABLE)
@pytest.mark.parametrize(
    ("width", "kept"), [(1, 1), (2, 1), (3, 2), (16, 8), (33, 7), (256, 128), (1433, 700), (70000, 3)]
)
def test_masks_in_torch_are_the_keyed_ones(at, width, kept):
    nodes = np.concatenate([np.random.default_rng(width).integers(0, 2**40, 50), [0, 1, 2**62]])
    for seed, epoch, layer in ((0, 0, 0), (5, 199, 2), (2**61, 3, 1)):
        found = dropout_mask(seed, epoch, layer, torch.from_numpy(nodes).to(at), width, kept).cpu().numpy()
        assert (found == keyed.dropout_mask(seed, epoch, layer, nodes, width, kept)).all()
    assert dropout_mask(1, 2, 3, torch.from_numpy(nodes).to(at), 4, 4).all()
    assert dropout_mask(1, 2, 3, torch.from_numpy(nodes[:0]).to(at), 4, 2).shape == (0, 4)


def test_masks_in_blocks_are_the_same(monkeypatch):
    nodes = torch.arange(40)
    whole = dropout_mask(1, 2, 3, nodes, 16, 5)
    monkeypatch.setattr("toolkit.comm.device_mask.BLOCK_ENTRIES", 100)
    assert torch.equal(dropout_mask(1, 2, 3, nodes, 16, 5), whole)


@pytest.mark.parametrize("at", AVAILABLE)
@pytest.mark.parametrize(("width", "kept"), [(1, 1), (9, 4), (9, 9), (256, 128)])
def test_kept_columns_without_waiting(at, width, kept):
    chosen = dropout_mask(1, 2, 3, torch.arange(30), width, kept)
    assert torch.equal(columns_on_device(chosen.to(at), kept).cpu(), columns_on_host(chosen, kept))


@pytest.mark.parametrize("at", AVAILABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_on_a_device_equal_dense_ones(at, dtype, monkeypatch):
    """torch's sparse product, which serves where the CPU's kernel does not, both ways."""
    monkeypatch.setattr(native, "available", lambda *tensors: False)
    matrix = sp.random(40, 30, density=0.2, random_state=0, format="csr", dtype=np.float64)
    sparse, dense = SparseMatrix.of(matrix, dtype, torch.device(at)), torch.from_numpy(matrix.toarray()).to(at, dtype)
    assert sparse.forward.torch_form is not None
    rows = torch.randn(30, 7, generator=torch.Generator().manual_seed(0)).to(at, dtype).requires_grad_()
    start = torch.randn(40, 7, generator=torch.Generator().manual_seed(1)).to(at, dtype)
    ledger, close = Ledger(1), functools.partial(torch.allclose, rtol=1e-5, atol=1e-6)
    product = multiply(sparse, rows, ledger, "central", 0)
    total = add_product(start.clone() + 0, sparse, rows, ledger, "marginal", 0)
    assert close(product, dense @ rows)
    assert close(total, start + dense @ rows)
    (to_rows,) = torch.autograd.grad((product * start).sum() + total.square().sum(), rows)
    expected = (dense @ rows * start).sum() + (start + dense @ rows).square().sum()
    assert close(to_rows, torch.autograd.grad(expected, rows)[0])


@pytest.mark.parametrize("at", AVAILABLE)
def test_gradients_are_summed_wherever_they_lie(at):
    def work(world, transport):
        gradients = [torch.full((2, 3), world.rank + 1.0, device=at), torch.full((4,), 2.0, device=at)]
        FlatSum(world)(gradients)
        return [g.cpu().tolist() for g in gradients]

    for found in run_ranks(2, work):
        assert found == [[[3.0] * 3] * 2, [4.0] * 4]


class Moments:
    """A clock whose moments are told later, as a device's are."""

    def __init__(self):
        self.count, self.told = 0, 0

    def now(self):
        self.count += 1
        return self.count

    def between(self, begin, end):
        self.told += 1
        return float(end - begin)


def test_a_ledger_reads_the_clock_of_a_device_late():
    clock = Moments()
    ledger = Ledger(1, clock=clock)
    with ledger.stage("central", 1), ledger.stage("wait", 1):
        pass
    with ledger.stage("central", 1):
        pass
    assert clock.told == 0
    assert ledger.take_seconds() == {("wait", 1, "forward"): 1.0, ("central", 1, "forward"): 4.0}
    assert ledger.take_seconds() == {}
    with ledger.stage("central", 1):
        pass
    ledger.add_seconds("flight", 1, "forward", 0.5)
    assert clock.told == 3, "adding waits for nothing"
    before = ledger.seconds.copy()
    assert before == {("central", 1, "forward"): 1.0, ("flight", 1, "forward"): 0.5}
    with ledger.stage("central", 1):
        pass
    ledger.seconds = before  # as Trainer.aside: what came in between counts for nothing
    assert ledger.take_seconds() == {("central", 1, "forward"): 1.0, ("flight", 1, "forward"): 0.5}


def test_ranks_without_a_device_are_refused_together(monkeypatch):
    """One rank of three has none: all say so, and which."""
    here = threading.local()
    monkeypatch.setattr(devices, "missing", lambda: here.refusal)

    def work(refusals):
        def check(world, transport):
            here.refusal = refusals[world.rank]
            devices.check(world)

        run_ranks(len(refusals), check)

    work(["", ""])
    with pytest.raises(UserError, match=r"^at rank 1: no device here$"):
        work(["", "no device here", ""])
    with pytest.raises(UserError, match=r"^no device here$"):
        work(["no device here"] * 2)


def test_the_device_library_is_looked_at_before_it_is_used(emulated, tmp_path, monkeypatch, caplog):
    """There and of this version: taken; another version, not a library, switched off: None, and why is told."""
    look, built = native.device_library.__wrapped__, Path(emulated._name)
    monkeypatch.setattr(native, "BUILT_FOR_DEVICES", built)
    assert look() is not None
    monkeypatch.setattr(native, "ABI", native.ABI + 1)
    assert look() is None
    assert "are of version" in caplog.text
    monkeypatch.setattr(native, "BUILT_FOR_DEVICES", tmp_path / "absent.so")
    assert look() is None
    (tmp_path / "broken.so").write_text("no library")
    monkeypatch.setattr(native, "BUILT_FOR_DEVICES", tmp_path / "broken.so")
    assert look() is None
    assert "can't be loaded" in caplog.text
    monkeypatch.setenv("BITRING_KERNELS", "off")
    monkeypatch.setattr(native, "BUILT_FOR_DEVICES", built)
    assert look() is None


def test_a_full_device_ends_the_run_with_a_sentence(monkeypatch, capsys):
    class OutOfMemoryError(RuntimeError):
        """Torch's, by its name."""

    def run(error):
        def refuse(args):
            raise error

        monkeypatch.setattr("toolkit.commands.info.run_methods", refuse)
        return cli.main(["methods"])

    with pytest.raises(SystemExit) as ended:
        run(OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has ..."))
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "bitring: CUDA out of memory; use more GPUs or hosts, a smaller model, or train.device = 'cpu'\n"
    )
    with pytest.raises(RuntimeError, match=r"another"):
        run(RuntimeError("another"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device: nothing to refuse")
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_cuda_without_a_device_is_refused_before_anything_is_written(tmp_path, ranks):
    environment = os.environ | {"BITRING_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "toolkit.cli", "train", str(ROOT / "examples" / "digits.toml"), "-np", ranks]
    done = subprocess.run(
        [*command, "--set", "train.device=cuda"], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "train.device is 'cuda'" in done.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"train\.device"):
        devices.make("cuda", Solo())
