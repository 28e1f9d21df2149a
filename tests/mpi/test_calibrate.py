"""Measured costs of a live job, and a simulated epoch of its own workload."""

import argparse

import numpy as np
import pytest
from mpi4py import MPI

from simulator import machine, workload
from simulator.epoch import simulate
from tests.mpi.test_resume import configuration
from toolkit.comm import calibrate as calibration
from toolkit.comm.calibrate import measure
from toolkit.commands.calibrate import calibrate
from toolkit.commands.train import train
from toolkit.errors import UserError

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


def test_costs_of_every_pair_and_a_simulated_epoch(world, shared_tmp):
    config = configuration(shared_tmp, train={"epochs": 5})
    out = shared_tmp / "machine.toml"
    if world.size == 1:
        with pytest.raises(UserError, match="one rank has nobody to send to"):
            calibrate(world, config, out)
        return
    calibrate(world, config, out)
    train(world, config, argparse.Namespace(run_dir=str(shared_tmp / "run"), seeds=None, resume=None))
    world.comm.Barrier()
    costs = machine.read(out).pair_costs()
    apart = ~np.eye(world.size, dtype=bool)
    assert costs.ranks == world.size
    assert (costs.gamma_s[apart] + 1000 * costs.theta_s_per_byte[apart] > 0).all()
    recorded = workload.load(shared_tmp / "run" / "workload.npz")
    time = simulate(recorded, costs)
    least = float((recorded.dense_s + recorded.held_s).max())
    assert least < time.epoch_s < least + 5
    assert time.num_bytes == recorded.epoch_bytes()


def test_pairs_at_once_measure_the_same_links(world, monkeypatch):
    """As on hosts of their own: every pair is there, and a long message costs more than a short one."""
    if world.size == 1:
        pytest.skip("one rank has no pair")
    monkeypatch.setattr(MPI, "Get_processor_name", lambda: f"host {world.rank}")
    rounds = []
    plain = calibration.schedule
    monkeypatch.setattr(calibration, "schedule", lambda *a, **k: (rounds.extend(plain(*a, **k)), plain(*a, **k))[1])
    fits = measure(world.comm, [1, 1000, 100_000, 8_000_000])
    assert rounds == plain(world.size, at_once=True)
    assert (fits is None) == (world.rank > 0)
    if fits is not None:
        assert set(fits) == {(i, j) for i in range(world.size) for j in range(world.size) if i != j}
        for one in fits.values():
            assert one.seconds(8_000_000) > one.seconds(1000) > 0


def test_long_messages_are_repeated_less(world, monkeypatch):
    """Two ranks agree on it without a message more."""
    if world.size == 1:
        pytest.skip("one rank has no pair")
    monkeypatch.setattr(calibration, "ENOUGH_S", -1.0)
    sent = []
    plain = calibration.wait_all
    monkeypatch.setattr(calibration, "wait_all", lambda requests: (sent.append(1), plain(requests))[1])
    measure(world.comm, [1, 1000, 2000], repeats=50)
    trips = calibration.FEWEST * 3 * 2 * (world.size - 1)  # of this rank, as the sender and as the receiver
    assert len(sent) == trips // 2 * 3 + len(calibration.schedule(world.size, at_once=False))
