"""No rank waits for ever: a thread in every rank sees that the others live and are in step.

    who watches whom        rank 0 every rank; every rank rank 0 (of several that notice, the lowest speaks);
                            the lowest rank of a host every process on it, every process there the lowest
    on one host             positions lie in memory that its ranks share; /proc tells a stopped process from
                            one that computes too hard for its thread to get a turn
    between hosts           each rank sends its position to rank 0 and rank 0 its own to all, once a period

It measures silence, not slowness: a rank that computes for an hour is no reason. Reasons are: a process
that is gone, one that is stopped or silent for ``timeout_s``, and ranks that wait in different operations
for ``timeout_s``. Then one rank says which, where and why, and ends the job (``launch.end_job``).
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from toolkit import launch
from toolkit.comm import position
from toolkit.comm.position import WORDS, Position, Word, first_difference
from toolkit.comm.world import MpiWorld, World

if TYPE_CHECKING:
    from mpi4py import MPI

PERIOD_S = 0.25
LATE_S = 2.0  # a watch that was held up this long itself (a suspended host, say) begins anew
STAGGER_S = 0.75  # rank r waits r times this longer for rank 0, so that one speaks
Health = Literal["alive", "silent", "stopped", "gone"]


@contextmanager
def watching(world: World, timeout_s: float, *, by_messages: bool = False) -> Iterator[None]:
    """Watch the ranks of a job during the block. Collective, at its end too unless an exception ends it.

    ``timeout_s`` 0: no watch. ``by_messages``: as if every rank had a host of its own (for tests).
    """
    if not isinstance(world, MpiWorld) or world.size == 1 or timeout_s == 0:
        yield
        return
    watch = Watch(world.comm, timeout_s, by_messages=by_messages)
    watch.start()
    launch.set_witness(watch.witness)
    try:
        yield
        watch.comm.Barrier()
        launch.set_witness(None)  # after an error it still tells where that was
    finally:
        watch.stop()


@dataclass(slots=True, kw_only=True)
class Peer:
    """Another rank, as this one sees it."""

    rank: int
    process: Process | None  # None: on another host
    slot: memoryview  # shared on this host, else what it sent last
    heard: float  # when it was last known to live
    moved: float  # when it last got on
    moves: tuple[int, ...] = ()
    beat: int = -1


class Watch:
    """This rank's watch over the others."""

    def __init__(self, comm: MPI.Intracomm, timeout_s: float, *, by_messages: bool = False) -> None:
        self.comm = comm.Dup()
        self.rank, self.timeout_s = comm.rank, timeout_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        local = _shared_slots(self.comm, alone=by_messages)
        position.move_to(local[self.rank])
        mine = Process.of(os.getpid())
        position.here()[Word.PID], position.here()[Word.STARTED] = mine.pid, mine.started
        self.comm.Barrier()
        now = time.monotonic()
        self.peers: dict[int, Peer] = {}
        for rank in range(comm.size):
            slot = local.get(rank, position.empty())
            process = Process(slot[Word.PID], slot[Word.STARTED]) if rank in local else None
            if rank != self.rank:
                self.peers[rank] = Peer(rank=rank, process=process, slot=slot, heard=now, moved=now)
        self._lowest_here = min(local)
        self._mail = _Mail(self.comm, [p.rank for p in self.peers.values() if p.process is None])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; from here on the others expect this rank to end."""
        position.here()[Word.LEAVING] = 1
        self._stopping.set()
        self._thread.join()
        self._mail.close()

    def witness(self) -> str:
        """Where this rank is, for its last words; the others then expect its end."""
        position.here()[Word.LEAVING] = 1
        return str(Position.of(position.here()))

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stopping.wait(PERIOD_S):
            now = time.monotonic()
            if now - last > LATE_S:
                for peer in self.peers.values():
                    peer.heard = peer.moved = now
            last = now
            position.here()[Word.BEAT] += 1
            for sender, words in self._mail.exchange(position.here()):
                self.peers[sender].slot[:] = words
            reason = self.look(now)
            if reason is not None and not self._stopping.is_set():
                position.here()[Word.LEAVING] = 1
                launch.end_job(launch.LOST, f"bitring: {reason}; the job is ended")

    def look(self, now: float) -> str | None:
        """One look at the others; the reason to end the job, if there is one."""
        for peer in self._watched():
            where = Position.of(peer.slot)
            health = self._health(peer, where, now)
            if where.leaving:
                continue
            lost = self._lost(peer, health, where, now)
            if lost is not None:
                return lost
        return self._out_of_step(now) if self.rank == 0 else None

    def _watched(self) -> list[Peer]:
        if self.rank == 0:
            return list(self.peers.values())
        leader = self.rank == self._lowest_here
        return [p for p in self.peers.values() if p.rank in (0, self._lowest_here) or (leader and p.process)]

    def _health(self, peer: Peer, where: Position, now: float) -> Health:
        if where.words[Word.BEAT] != peer.beat:
            peer.beat, peer.heard = where.words[Word.BEAT], now
            health: Health = "alive"
        elif peer.process is None:
            health = "silent"
        else:
            health = peer.process.look()
            if health == "alive":
                peer.heard = now
        if where.moves != peer.moves:
            peer.moves, peer.moved = where.moves, now
        return health

    def _lost(self, peer: Peer, health: Health, where: Position, now: float) -> str | None:
        if health == "gone":
            # at once: mpirun ends the others a second later
            return self._died(peer, where) if self._first_to_see(peer) else None
        if self.rank and peer.rank:
            return None  # rank 0 looks after silence
        if peer.process is None and position.here()[Word.PATIENT]:
            return None  # rank 0 of another host works for all, and may leave its thread no turn
        silence_s = now - peer.heard
        if silence_s <= self.timeout_s + STAGGER_S * max(0, self.rank - 1):
            return None
        how = "is stopped (SIGSTOP)" if health == "stopped" else "gives no sign of life"
        seen = "in" if peer.process is not None else "last heard of in"
        return f"rank {peer.rank} {how} for {silence_s:.0f} s, {seen} {where}; {self._own()}"

    def _first_to_see(self, peer: Peer) -> bool:
        """Of the processes of this host that are left, the lowest rank speaks."""
        return all(
            p.rank > self.rank or p.rank == peer.rank or p.process is None or p.process.look() == "gone"
            for p in self.peers.values()
        )

    def _died(self, peer: Peer, where: Position) -> str:
        return f"rank {peer.rank} died (killed, out of memory, or crashed), in {where}; {self._own()}"

    def _own(self) -> str:
        return f"rank {self.rank} is in {Position.of(position.here())}"

    def _out_of_step(self, now: float) -> str | None:
        positions = {peer.rank: Position.of(peer.slot) for peer in self.peers.values()}
        positions[0] = Position.of(position.here())
        waited = {peer.rank: now - peer.moved for peer in self.peers.values()}
        waiting = {rank: p for rank, p in positions.items() if p.waits}
        stuck = {rank: p for rank, p in waiting.items() if waited.get(rank, self.timeout_s + 1) > self.timeout_s}
        odd = first_difference(stuck) if len(stuck) > 1 else None
        if odd is None:
            return None
        # told with those that have not waited as long: from other hosts, ranks are not heard at the same moment
        rest = {rank: p for rank, p in waiting.items() if rank not in odd}
        waited_s = min(waited[rank] for rank in stuck if rank)
        return f"ranks have waited in different operations for {waited_s:.0f} s: {_in_words(odd)}; {_in_words(rest)}"


def _in_words(positions: Mapping[int, Position]) -> str:
    """Ranks and where the first of them is."""
    ranks = sorted(positions)
    name = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"{name} in {positions[ranks[0]]}"


@dataclass(slots=True)
class Process:
    """A process of this host, by number and start: the number alone may be given anew."""

    pid: int
    started: int
    _ticks: int = field(default=-1)

    @staticmethod
    def of(pid: int) -> Process:
        stat = _stat(pid)
        return Process(pid, stat[2] if stat else 0)

    def look(self) -> Health:
        """Alive is one that has used the processor since the last look. Without a /proc nothing is known: silent."""
        stat = _stat(self.pid)
        if self.started == 0:
            return "silent"
        if stat is None or stat[2] != self.started or stat[0] in "ZX":
            return "gone"
        state, ticks, _ = stat
        if state in "Tt":
            return "stopped"
        before, self._ticks = self._ticks, ticks
        return "alive" if ticks != before else "silent"


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, processor ticks, start of a process (proc(5)); None if there is no such one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[11]) + int(fields[12]), int(fields[19])


def _shared_slots(comm: MPI.Intracomm, *, alone: bool) -> dict[int, memoryview]:
    """A slot for each rank of this host, in memory that they share; this rank's alone where that fails."""
    from mpi4py import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = host.allgather(comm.rank)
    memory: mmap.mmap | None = None
    path = host.bcast(_make_board(len(ranks)) if host.rank == 0 and not alone else None)
    if path:
        with suppress(OSError, ValueError), open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 8 * WORDS * len(ranks))
    pids = host.allgather(os.getpid())
    # ranks in containers of their own may share a host's name and neither its files nor its processes
    sees_all = memory is not None and all(_stat(pid) is not None for pid in pids)
    shared = host.allreduce(sees_all, op=MPI.LAND)
    if host.rank == 0 and path:
        os.unlink(path)
    host.Free()
    if not shared or memory is None:
        return {comm.rank: position.empty()}
    words = memoryview(memory).cast("q")
    return {rank: words[WORDS * i : WORDS * (i + 1)] for i, rank in enumerate(ranks)}


def _make_board(slots: int) -> str | None:
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with suppress(OSError):
        descriptor, path = tempfile.mkstemp(prefix="bitring-watch-", dir=folder)
        os.write(descriptor, bytes(8 * WORDS * slots))
        os.close(descriptor)
        return path
    return None


class _Mail:
    """Positions to and from ranks on other hosts: all of them for rank 0, rank 0 alone for the others."""

    def __init__(self, comm: MPI.Intracomm, far: list[int]) -> None:
        self._comm = comm
        self._far = far if comm.rank == 0 else [rank for rank in far if rank == 0]
        self._in: dict[int, NDArray[np.int64]] = {rank: np.zeros(WORDS, dtype=np.int64) for rank in self._far}
        self._receives = {rank: comm.Irecv(words, rank) for rank, words in self._in.items()}
        self._out = np.zeros(WORDS, dtype=np.int64)
        self._sends: list[MPI.Request] = []

    def exchange(self, own: memoryview) -> list[tuple[int, memoryview]]:
        """Send ``own`` to all, unless the last is still under way to one; give what has arrived."""
        from mpi4py import MPI

        if self._far and MPI.Request.Testall(self._sends):
            self._out[:] = own
            self._sends = [self._comm.Isend(self._out, rank) for rank in self._far]
        arrived = {}
        for rank in self._far:
            while self._receives[rank].Test():
                arrived[rank] = memoryview(self._in[rank].tobytes()).cast("q")
                self._receives[rank] = self._comm.Irecv(self._in[rank], rank)
        return list(arrived.items())

    def close(self) -> None:
        for request in self._receives.values():
            request.Cancel()
            request.Wait()
