"""The emulated network of the benches."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.netlab import lab
from bench.netlab.lab import Lab, Link, bits_per_second, seconds
from toolkit.errors import UserError

USABLE = os.name == "posix" and os.geteuid() == 0 and Path("/dev/net/tun").exists() and shutil.which("ip")


def test_rates_and_delays():
    assert [bits_per_second(text) for text in ("0", "100mbit", "1.5gbit", "64kbit")] == [0, 1e8, 1.5e9, 6.4e4]
    assert [seconds(text) for text in ("0", "100us", "2ms")] == pytest.approx([0, 1e-4, 2e-3])
    for bad in ("fast", "100", "10mb", "-1mbit"):
        with pytest.raises(UserError, match="give one like 100mbit"):
            bits_per_second(bad)


def test_a_lab_is_data():
    found = Lab.uniform(3, "100mbit", "1ms")
    assert len(found.links) == 6
    assert found.links[0, 2] == Link(1e8, 1e-3)
    with pytest.raises(UserError, match="1 hosts; give 2 to 32"):
        Lab.uniform(1, "100mbit")


PING = """
from mpi4py import MPI
import numpy as np, sys, time
comm, data = MPI.COMM_WORLD, np.zeros(500_000, np.uint8)
for n in (1, len(data)):
    best = 1e9
    for _ in range(5):
        comm.Barrier()
        begin = time.perf_counter()
        if comm.rank == 0:
            comm.Send(data[:n], 1); comm.Recv(data[:1], 1)
        else:
            comm.Recv(data[:n], 0); comm.Send(data[:1], 0)
        best = min(best, time.perf_counter() - begin)
    if comm.rank == 0:
        open(sys.argv[1], "a").write(f"{best}\\n")
"""


@pytest.mark.skipif(not USABLE, reason="needs root, /dev/net/tun and iproute2")
@pytest.mark.skipif(lab.state_folder().exists(), reason="an emulated network is up already")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
@pytest.mark.timeout(120)
def test_messages_take_what_their_link_gives(tmp_path):
    """Never faster than the link; slower by what a busy machine adds."""
    script, out = tmp_path / "ping.py", tmp_path / "out"
    script.write_text(PING)
    with Lab.uniform(2, "40mbit", "2ms").running() as two:
        assert two.mpirun([sys.executable, str(script), str(out)], timeout_s=50).returncode == 0
        faster = two.with_link(0, 1, "400mbit")
        assert Lab.found() == faster
        assert faster.mpirun([sys.executable, str(script), str(out)], timeout_s=50).returncode == 0
    latency, slow, _, fast = (float(line) for line in out.read_text().split())
    assert 4e-3 < latency < 20e-3
    assert 0.1 < slow < 0.2  # 500 kB at 40 Mbit/s: 0.1 s
    assert 0.01 < fast < 0.6 * slow
    assert not lab.state_folder().exists()
    listed = subprocess.run(["ip", "netns", "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "nl1" not in listed
