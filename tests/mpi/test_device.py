"""The device's exchange over real messages: its bits are the CPU's, on every transport."""

import ctypes
import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.mpi.conftest import need_horovod
from tests.support.emulated_device import EmulatedDevice
from tests.support.graphs import random_graph
from toolkit import config as configs
from toolkit.comm.device import mpi_takes_device_memory
from toolkit.comm.world import on_root
from toolkit.graph.part import build_parts
from toolkit.train.trainer import Trainer, make_transport

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]
CUDA = Path(__file__).parent.parent.parent / "cuda"
TRANSPORTS = {"posted": {}, "rendezvous": {"ring": "rendezvous"}, "horovod": {"transport": "horovod"}}


@pytest.fixture(scope="module")
def emulated(world, tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing, and the emulated device kernels are built by it")
    out = world.broadcast(str(tmp_path_factory.mktemp("emulated")))

    def build():
        subprocess.run(["make", "-s", "-C", CUDA, "emulated", f"OUT={out}"], check=True, capture_output=True)

    on_root(world, build)
    return ctypes.CDLL(f"{out}/libbitring_emulated.so")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("bits", [32, 8, 4, 2])
def test_training_has_the_bits_of_the_cpu(world, emulated, transport, bits):
    if transport == "horovod":
        need_horovod()
    graph = random_graph(100, train_share=0.5)
    parts = np.random.default_rng(2).integers(0, world.size, graph.num_nodes)
    part = list(build_parts(graph, parts, world.size))[world.rank]
    codec = {"codec": "float32"} if bits == 32 else {"codec": "quantised", "bits": bits}
    config = configs.Config(
        model=configs.Model(layers=3, hidden=16, norm="layer"),
        method=configs.Method(**codec, **TRANSPORTS[transport]),
    )

    def train(device):
        made = make_transport(world, config.method)
        trainer = Trainer(part, config, world, made, device=device)
        losses = [trainer.step(epoch).loss for epoch in range(3)]
        scores = {name: dataclasses.astuple(of)[:4] for name, of in trainer.evaluate().items()}
        made.close()
        return losses, scores, [p.detach().numpy().tobytes() for p in trainer.parameters]

    assert train(EmulatedDevice.of(emulated)) == train(None)


def test_the_mpi_here_says_what_it_takes(world):
    """Open MPI of a distribution is built without CUDA; whatever it says, all ranks hear the same."""
    assert len(set(world.comm.allgather(mpi_takes_device_memory()))) == 1
