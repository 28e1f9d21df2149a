"""The ring's rounds and what each semantics does, told by a communicator that only listens."""

import pytest
import torch

from toolkit.comm import ring as rings
from toolkit.comm.ring import Ring, ring_rounds


def test_the_rounds_are_the_table():
    table = [[(1, 3), (2, 2), (3, 1)], [(2, 0), (3, 3), (0, 2)], [(3, 1), (0, 0), (1, 3)], [(0, 2), (1, 1), (2, 0)]]
    assert [ring_rounds(rank, 4) for rank in range(4)] == table
    assert ring_rounds(0, 1) == []


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_every_send_meets_its_receive_in_the_same_round(size):
    rounds = [ring_rounds(rank, size) for rank in range(size)]
    for i in range(size - 1):
        assert all(rounds[rounds[r][i][0]][i][1] == r for r in range(size))
    assert all(sorted(to for to, _ in rounds[r]) == [x for x in range(size) if x != r] for r in range(size))


class Listening:
    """A communicator of 4 whose rank is 0: it writes down what is asked of it."""

    rank, size = 0, 4

    def __init__(self, events):
        self.events = events

    def Dup(self):
        return self

    def Free(self):
        pass

    def Irecv(self, buffer, sender):
        self.events.append(f"receive {sender}")

    def Isend(self, buffer, receiver):
        self.events.append(f"send {receiver}")

    def Issend(self, buffer, receiver):
        self.events.append(f"synchronous send {receiver}")

    def Ibarrier(self):
        self.events.append("barrier")


def events_of(semantics, monkeypatch, sizes=(0, 8, 8, 8)):
    events = []
    monkeypatch.setattr(rings, "wait_all", lambda requests: events.append(f"wait {len(requests)}"))
    ring = Ring(Listening(events), semantics)
    payload, into = (torch.zeros(sum(sizes), dtype=torch.uint8) for _ in range(2))
    ring.start(payload, sizes, into, sizes).wait()
    ring.close()
    return events


def test_posted_starts_every_round_before_it_waits_for_them_in_order(monkeypatch):
    assert events_of("posted", monkeypatch) == [
        "receive 3", "send 1", "receive 2", "send 2", "receive 1", "send 3", "wait 2", "wait 2", "wait 2",
    ]  # fmt: skip


def test_rendezvous_has_one_round_in_flight_and_sends_synchronously(monkeypatch):
    assert events_of("rendezvous", monkeypatch) == [
        "receive 3", "synchronous send 1", "wait 2",
        "receive 2", "synchronous send 2", "wait 2",
        "receive 1", "synchronous send 3", "wait 2",
    ]  # fmt: skip


def test_barrier_ends_every_round_in_step(monkeypatch):
    assert events_of("barrier", monkeypatch) == [
        "receive 3", "synchronous send 1", "wait 2", "barrier", "wait 1",
        "receive 2", "synchronous send 2", "wait 2", "barrier", "wait 1",
        "receive 1", "synchronous send 3", "wait 2", "barrier", "wait 1",
    ]  # fmt: skip


def test_empty_messages_are_not_sent(monkeypatch):
    assert events_of("posted", monkeypatch, (0, 0, 8, 0)) == [
        "receive 2", "send 2", "wait 0", "wait 2", "wait 0",
    ]  # fmt: skip


def test_buffers_are_views_of_the_flat_ones(monkeypatch):
    seen = []
    monkeypatch.setattr(rings, "wait_all", lambda requests: None)

    class Buffers(Listening):
        def Irecv(self, buffer, sender):
            buffer[:] = sender

        def Isend(self, buffer, receiver):
            seen.append((receiver, buffer.tolist()))

    ring = Ring(Buffers([]), "posted")
    payload = torch.arange(6, dtype=torch.uint8)
    arrived = ring.start(payload, (0, 1, 2, 3), torch.empty(6, dtype=torch.uint8), (0, 3, 1, 2)).wait()
    assert seen == [(1, [0]), (2, [1, 2]), (3, [3, 4, 5])]
    assert arrived.tolist() == [1, 1, 1, 2, 3, 3]
    ring.close()
