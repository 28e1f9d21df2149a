"""The order of events is the picture at the top of toolkit/comm/halo.py, forward and backward."""

import numpy as np
import pytest

from tests.support.graphs import random_graph
from tests.support.local_world import run_ranks
from toolkit.comm.ledger import WHOLE, Ledger
from toolkit.config import Config, Model
from toolkit.graph.part import build_parts
from toolkit.train.trainer import Trainer

FORWARD = ["post", "central", "wait", "marginal"]
BACKWARD = ["marginal", "post", "central", "wait"]


class Told:
    """A transport that says when it is started and when it is waited for."""

    name = "told"

    def __init__(self, inner, events):
        self.inner, self.events = inner, events

    def start(self, payload, send_bytes, into, receive_bytes):
        self.events.append("post")
        return ToldPending(self.inner.start(payload, send_bytes, into, receive_bytes), self.events)

    def close(self):
        pass


class ToldPending:
    def __init__(self, inner, events):
        self.inner, self.events = inner, events

    def wait(self):
        self.events.append("wait")
        return self.inner.wait()

    def flight_s(self):
        return 0.0

    def round_ends_s(self):
        return ()


class ToldLedger(Ledger):
    """A ledger that says when a product is made."""

    def __init__(self, ranks, events):
        super().__init__(ranks)
        self.events = events

    def stage(self, name, layer=WHOLE, direction="forward"):
        if name in ("central", "marginal"):
            self.events.append(name)
        return super().stage(name, layer, direction)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_local_rows_are_multiplied_while_messages_travel(kind):
    graph = random_graph(60)
    owned = list(build_parts(graph, np.arange(60) % 2, 2))
    config = Config(model=Model(kind=kind, layers=3, hidden=8, norm="layer"))

    def work(world, transport):
        events = []
        trainer = Trainer(owned[world.rank], config, world, Told(transport, events))
        trainer.ledger = trainer.engine.ledger = ToldLedger(world.size, events)
        events.clear()  # layer 0's one exchange is over
        trainer.gradients(0)
        return events

    held = ["central", "marginal"] if kind == "gat" else []  # attention is never held
    for events in run_ranks(2, work):
        # layer 0 exchanges nothing; layers 1 and 2 cross forward, then back in the opposite order
        assert events == held + FORWARD + FORWARD + BACKWARD + BACKWARD + held[::-1]
