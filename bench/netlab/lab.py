"""Hosts as network namespaces, wires by linkd, MPI ranks in them.

Root and Linux with TUN devices; iproute2, util-linux, Open MPI, a C compiler. Traffic never leaves the
namespaces: hosts nl1..nlN, addresses 10.99.0.1..N. One laboratory per machine: its state lies in a
fixed folder, so that one process may set it up and another use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.errors import UserError

HERE = Path(__file__).parent
MOST_HOSTS = 32
EAGER_BYTES = 4 << 20  # messages up to that go without asking the receiver: a rendezvous makes no progress in compute
UNITS_BIT_S = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SMALLEST = {"rate": 1e3, "delay": 1e-9}
UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}


def state_folder() -> Path:
    return Path(tempfile.gettempdir()) / "bitring-netlab"


@dataclass(frozen=True, slots=True)
class Link:
    """One directed pair: bit/s (0: no limit) and seconds one way."""

    bit_s: float
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A network of ``hosts`` hosts. Immutable: a change gives another Lab and tells the wires."""

    hosts: int
    links: dict[tuple[int, int], Link]  # by (sender, receiver), hosts counted from 0
    nics: dict[int, float] = field(default_factory=dict)  # capped hosts: bit/s, both ways
    mtu: int = 1500

    @staticmethod
    def uniform(hosts: int, rate: str, delay: str = "100us") -> Lab:
        if not 2 <= hosts <= MOST_HOSTS:
            raise UserError(f"{hosts} hosts; give 2 to {MOST_HOSTS}")
        link = Link(bits_per_second(rate), seconds(delay))
        return Lab(hosts=hosts, links={(i, j): link for i in range(hosts) for j in range(hosts) if i != j})

    @staticmethod
    def found() -> Lab:
        """The laboratory that is up."""
        try:
            plain = json.loads((state_folder() / "lab.json").read_text())
        except OSError:
            raise UserError("no emulated network is up; start one: python -m bench.netlab up 4 100mbit 100us") from None
        links = {(i, j): Link(*link) for i, j, *link in plain["links"]}
        nics = {int(host): rate for host, rate in plain["nics"].items()}
        return Lab(hosts=plain["hosts"], links=links, nics=nics, mtu=plain["mtu"])

    @contextlib.contextmanager
    def running(self) -> Iterator[Lab]:
        """Up in a with block. SIGTERM ends the block, and takes the network down."""
        before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        try:
            self.up()
            yield self
        finally:
            down()
            signal.signal(signal.SIGTERM, before)

    def up(self) -> None:
        """Make the hosts and the wires; takes down what stood before."""
        if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
            raise UserError("the emulated network needs root and /dev/net/tun")
        down()
        folder = state_folder()
        folder.mkdir(parents=True)
        try:
            self._write()
            for name in self._names():
                _make_host(name, self._names())
            linkd = _compiled("linkd.c", "linkd", [])
            with (folder / "linkd.log").open("wb") as log:
                process = subprocess.Popen(
                    [linkd, folder / "linkd.conf"],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            (folder / "linkd.pid").write_text(str(process.pid))
            _wait_for(lambda: "ready" in (folder / "linkd.log").read_text(), "the emulated wires did not start")
            for number, name in enumerate(self._names(), 1):
                _connect(name, number, self.mtu)
            agent = folder / "agent"
            agent.write_text(_AGENT)
            agent.chmod(0o755)
        except BaseException:
            down()
            raise

    def with_link(self, sender: int, receiver: int, rate: str, delay: str | None = None) -> Lab:
        """One directed pair (hosts from 0) at another rate and, if given, delay; tells the wires."""
        old = self.links[sender, receiver]
        link = Link(bits_per_second(rate), old.delay_s if delay is None else seconds(delay))
        return self._changed(dataclasses.replace(self, links=self.links | {(sender, receiver): link}))

    def with_nic(self, host: int, rate: str) -> Lab:
        """One host's NIC at ``rate``, all its pairs together, each way; 0: no cap."""
        return self._changed(dataclasses.replace(self, nics=self.nics | {host: bits_per_second(rate)}))

    def mpirun(
        self, command: Sequence[str], *, ranks_per_host: int = 1, timeout_s: float = 3600
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``command`` with one rank a host (or several); rank 0 on the first host."""
        return subprocess.run(
            [*self.starter(ranks_per_host), *command],
            env=self.environment(ranks_per_host),
            timeout=timeout_s,
            check=False,
        )

    def starter(self, ranks_per_host: int = 1) -> list[str]:
        """What stands before a command to have it run by ranks on the hosts."""
        hosts = ",".join(f"{name}:{ranks_per_host}" for name in self._names())
        nap = _compiled("nap.c", "nap.so", ["-shared", "-fPIC"])
        limits = ("eager_limit", "rndv_eager_limit", "max_send_size")
        settings = {
            "plm_rsh_agent": str(state_folder() / "agent"),
            "plm_rsh_no_tree_spawn": "1",
            "oob_tcp_if_include": "nl0",
            "btl": "tcp,self" if ranks_per_host == 1 else "tcp,vader,self",
            "pml": "ob1",
            "btl_tcp_if_include": "nl0",
            "mpi_yield_when_idle": "1",
            "btl_tcp_sndbuf": str(EAGER_BYTES),
            "btl_tcp_rcvbuf": str(EAGER_BYTES),
        } | {f"btl_tcp_{limit}": str(EAGER_BYTES) for limit in limits}
        options = [word for key, value in settings.items() for word in ("--mca", key, value)]
        mpirun = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--host", hosts]
        mpirun += ["-np", str(self.hosts * ranks_per_host), *options, "-x", f"LD_PRELOAD={nap}"]
        return [*_inside(self._names()[0]), *mpirun]

    def environment(self, ranks_per_host: int = 1) -> dict[str, str]:
        """Of a job: as many threads as the machine has cores for its ranks."""
        threads = max(1, (os.cpu_count() or 1) // (self.hosts * ranks_per_host))
        return os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(HERE.parent.parent)}

    def _names(self) -> list[str]:
        return [f"nl{i + 1}" for i in range(self.hosts)]

    def _changed(self, other: Lab) -> Lab:
        other._write()
        os.kill(_linkd(), signal.SIGHUP)
        time.sleep(0.05)
        return other

    def _write(self) -> None:
        """The wires' configuration, and this object for other processes."""
        lines = [f"mtu {self.mtu}"]
        for host, name in enumerate(self._names()):
            rate = self.nics.get(host, 0.0)
            lines.append(f"host {host} {name} {rate:.0f} {rate:.0f}")
        lines += [f"pair {i} {j} {k.bit_s:.0f} {1e9 * k.delay_s:.0f}" for (i, j), k in self.links.items()]
        plain = {
            "hosts": self.hosts,
            "mtu": self.mtu,
            "nics": self.nics,
            "links": [[i, j, link.bit_s, link.delay_s] for (i, j), link in self.links.items()],
        }
        for name, text in (("linkd.conf", "\n".join(lines) + "\n"), ("lab.json", json.dumps(plain))):
            path = state_folder() / name
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)


def down() -> None:
    """Take everything down; nothing to do where nothing is up."""
    with contextlib.suppress(UserError, ProcessLookupError):
        os.kill(_linkd(), signal.SIGTERM)
    listed = subprocess.run(["ip", "netns", "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in re.findall(r"^(nl\d+)\b", listed, flags=re.MULTILINE):
        inside = subprocess.run(["ip", "netns", "pids", name], check=False, stdout=subprocess.PIPE, text=True).stdout
        for pid in map(int, inside.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], check=True)
        shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
    shutil.rmtree(state_folder(), ignore_errors=True)


def counters() -> str:
    """What the wires have counted so far."""
    os.kill(_linkd(), signal.SIGUSR1)
    time.sleep(0.2)
    return (state_folder() / "linkd.log").read_text()


def _linkd() -> int:
    """The process that emulates the wires."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((state_folder() / "linkd.pid").read_text())
        if Path(f"/proc/{pid}/comm").read_text().strip() == "linkd":
            return pid
    raise UserError("the emulated wires are not running; start them anew: python -m bench.netlab up 4 100mbit 100us")


def bits_per_second(text: str) -> float:
    """ "100mbit" -> 1e8; "0": no limit."""
    return _quantity(text, UNITS_BIT_S, "rate", "100mbit")


def seconds(text: str) -> float:
    """ "100us" -> 1e-4."""
    return _quantity(text, UNITS_S, "delay", "100us")


def _quantity(text: str, units: dict[str, float], what: str, example: str) -> float:
    if text == "0":
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.lower())
    if found is None or found[2] not in units or float(found[1]) * units[found[2]] < SMALLEST[what]:
        raise UserError(f"{what} {text!r}; give one like {example} ({', '.join(units)}), or 0")
    return float(found[1]) * units[found[2]]


def _inside(name: str) -> list[str]:
    """A command prefix: in this host's network, under its name."""
    return ["ip", "netns", "exec", name, "unshare", "--uts", "bash", "-c", f'hostname {name}; exec "$@"', name]


_AGENT = """#!/bin/bash
# Open MPI's launch agent: agent [options] HOST COMMAND...
while [[ $1 == -* ]]; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; exec $*"
"""


def _make_host(name: str, everybody: Sequence[str]) -> None:
    _run("ip", "netns", "add", name)
    _run("ip", "-n", name, "link", "set", "lo", "up")
    # no slow start after a pause, nothing remembered between connections: an epoch is like the last one
    quiet = [
        "net.ipv4.tcp_slow_start_after_idle=0",
        "net.ipv4.tcp_no_metrics_save=1",
        "net.ipv6.conf.all.disable_ipv6=1",
    ]
    _run("ip", "netns", "exec", name, "sysctl", "-qw", *quiet)
    etc = Path("/etc/netns") / name  # `ip netns exec` lays these over /etc
    etc.mkdir(parents=True, exist_ok=True)
    known = "".join(f"10.99.0.{number} {host}\n" for number, host in enumerate(everybody, 1))
    (etc / "hosts").write_text("127.0.0.1 localhost\n" + known)
    (etc / "hostname").write_text(name + "\n")


def _connect(name: str, number: int, mtu: int) -> None:
    _run("ip", "-n", name, "link", "set", "nl0", "mtu", str(mtu), "up", "txqueuelen", "10000")
    _run("ip", "-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", "nl0")
    # nothing is lost here, so a time-out behind a long queue would be a false one
    route = f"10.99.0.0/24 dev nl0 proto kernel scope link src 10.99.0.{number} rto_min 5s initcwnd 64"
    _run("ip", "-n", name, "route", "replace", *route.split())


def _compiled(source: str, target: str, options: Sequence[str]) -> Path:
    path = state_folder() / target
    if not path.exists():
        _run(os.environ.get("CC", "cc"), "-O2", "-Wall", *options, "-o", str(path), str(HERE / source))
    return path


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()}")


def _wait_for(condition: object, sentence: str) -> None:
    assert callable(condition)
    for _ in range(50):
        if condition():
            return
        time.sleep(0.1)
    raise UserError(f"{sentence}; see {state_folder() / 'linkd.log'}")


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules, for mpirun()."""
    return [sys.executable, "-m", module, *arguments]
