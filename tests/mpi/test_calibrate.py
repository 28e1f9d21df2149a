"""Measured costs of a live job, and a simulated epoch of its own workload."""

import argparse

import numpy as np
import pytest

from simulator import machine, workload
from simulator.epoch import simulate
from tests.mpi.test_resume import configuration
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
