"""Every transport brings the same bytes to the same places."""

import numpy as np
import pytest
import torch

from tests.mpi.conftest import need_horovod
from toolkit.comm import ring as rings
from toolkit.comm.horovod import HorovodAlltoall, start
from toolkit.comm.reduce import FlatSum, HorovodGrouped, HorovodOverlapped, gradient_sum
from toolkit.comm.ring import Ring

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


@pytest.fixture(params=["posted", "rendezvous", "barrier", "horovod"])
def transport(request, world):
    if request.param == "horovod":
        need_horovod()
        made = HorovodAlltoall(world.comm)
    else:
        made = Ring(world.comm, request.param)
    yield made
    made.close()


def sizes(size, seed, largest):
    """[N, N] bytes from row to column: some channels empty, none to oneself."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, largest, (size, size)) * (rng.random((size, size)) < 0.7)
    np.fill_diagonal(drawn, 0)
    return drawn


def content(sender, receiver, count):
    return torch.from_numpy(np.random.default_rng([sender, receiver]).integers(0, 256, count, dtype=np.uint8))


@pytest.mark.parametrize("largest", [2, 1000, 300_000])
def test_bytes_arrive(world, transport, largest):
    for seed in range(5):
        counts = sizes(world.size, seed, largest)
        payload = torch.cat([content(world.rank, r, counts[world.rank, r]) for r in range(world.size)])
        into = torch.empty(int(counts[:, world.rank].sum()), dtype=torch.uint8)
        pending = transport.start(payload, counts[world.rank].tolist(), into, counts[:, world.rank].tolist())
        expected = torch.cat([content(s, world.rank, counts[s, world.rank]) for s in range(world.size)])
        assert torch.equal(pending.wait(), expected)
        assert pending.flight_s() >= 0
        ends = pending.round_ends_s()
        assert len(ends) == (0 if transport.name == "horovod" else world.size - 1)
        assert list(ends) == sorted(ends) and pending.flight_s() == max(ends, default=pending.flight_s())


def test_long_messages_go_in_pieces(world, monkeypatch):
    monkeypatch.setattr(rings, "PIECE_BYTES", 1000)
    ring = Ring(world.comm, "posted")
    counts = [0 if r == world.rank else 12_345 for r in range(world.size)]
    payload = torch.cat([content(world.rank, r, counts[r]) for r in range(world.size)])
    arrived = ring.start(payload, counts, torch.empty_like(payload), counts).wait()
    assert torch.equal(arrived, torch.cat([content(s, world.rank, counts[s]) for s in range(world.size)]))
    ring.close()


def test_gradient_sums_agree(world, horovod_installed):
    def gradients():
        generator = torch.Generator().manual_seed(world.rank)
        return [torch.randn(shape, generator=generator) for shape in ((3, 4), (5,), (1,), (200, 300))]

    by_mpi, grouped, hvd = gradients(), gradients(), start(world.comm)
    FlatSum(world)(by_mpi)
    HorovodGrouped(hvd)(grouped)
    parameters = [torch.nn.Parameter(torch.ones_like(g)) for g in grouped]
    overlapped = HorovodOverlapped(hvd, parameters)
    for _ in range(2):  # handles must not be left over
        for p in parameters:
            p.grad = None
        sum((p * g).sum() for p, g in zip(parameters, gradients(), strict=True)).backward()
        overlapped([])
    for a, b, p in zip(by_mpi, grouped, parameters, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)
        assert torch.allclose(a, p.grad, rtol=1e-5, atol=1e-5)
    expected = sum(
        np.float64(torch.randn(3, 4, generator=torch.Generator().manual_seed(r)).numpy()) for r in range(world.size)
    )
    assert np.allclose(by_mpi[0].numpy(), expected, atol=1e-5)


def test_the_sum_has_the_same_bits_everywhere(world):
    values = [torch.randn(10_001, generator=torch.Generator().manual_seed(world.rank))]
    FlatSum(world)(values)
    everyone = world.comm.allgather(values[0].numpy().tobytes())
    assert len(set(everyone)) == 1


def test_small_gradients_do_not_wait_for_horovod(world, horovod_installed):
    small, large = [torch.nn.Parameter(torch.zeros(10))], [torch.nn.Parameter(torch.zeros(1 << 20))]
    chosen = [("auto", small), ("auto", large), ("horovod", small), ("mpi", large)]
    names = [gradient_sum(world, reduction, of, overlap=False).name for reduction, of in chosen]
    assert names == ["mpi", "horovod, grouped", "horovod, grouped", "mpi"]
    assert gradient_sum(world, "horovod", small, overlap=True).name == "horovod, overlapping backward"


def test_ranks_on_this_host(world):
    assert world.ranks_on_host() == world.size
