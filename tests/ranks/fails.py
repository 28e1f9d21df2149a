"""Rank program: trains, and in one exchange of epoch 3 one rank does what the arguments say.

python -m tests.ranks.fails HOW RANK TIMEOUT_S MARK [messages]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from toolkit import config as configs
from toolkit import launch
from toolkit.comm import position
from toolkit.comm.position import Word
from toolkit.comm.watch import watching
from toolkit.comm.world import MpiWorld, on_root
from toolkit.graph import cache
from toolkit.train.loop import train_seed
from toolkit.train.trainer import make_transport

HOW, RANK, TIMEOUT_S, MARK = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
launch.install_excepthook()
WORLD = MpiWorld()


def fail():
    MARK.write_text(str(time.time()))
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif HOW == "raises":
        raise ValueError("in the middle of an exchange")
    elif HOW == "elsewhere":
        WORLD.broadcast(None)  # the others exchange rows
    elif HOW == "late":
        time.sleep(TIMEOUT_S + 2)  # slow, and no reason to end anything
    elif HOW == "crunches":  # one call that holds the interpreter's lock, so that the watch gets no turn
        sum(range(int(3e8)))


transport = make_transport(WORLD, configs.Method(transport=os.environ.get("BITRING_TEST_TRANSPORT", "ring")))
start = transport.start


def start_or_fail(*arguments):
    here = position.here()
    if WORLD.rank == RANK and (here[Word.EPOCH], here[Word.LAYER], here[Word.BACKWARD]) == (3, 2, 1):
        fail()
    return start(*arguments)


transport.start = start_or_fail
config = configs.from_tables(
    {"data": {"name": "digits"}, "model": {"layers": 3, "hidden": 16}, "train": {"epochs": 5, "threads": 1}}
)
with watching(WORLD, TIMEOUT_S, by_messages="messages" in sys.argv):
    part = on_root(WORLD, lambda: cache.ensure(config, WORLD.size)).load(WORLD.rank)
    train_seed(part, config, WORLD, transport, 0, None)
launch.leave(0)
