"""The ring in SimPy, as lean as it goes: the third opinion, and what the bench compares with."""

import numpy as np
import simpy


def simpy_finish(cost, start, semantics):
    """Finish times [N] for costs [N, N] (row the receiver) without absent messages."""
    env = simpy.Environment()
    n = len(start)
    finish = np.zeros(n)
    reached = [[env.event() for _ in range(n - 1)] for _ in range(n)]  # [rank][round]
    arrived = [[env.event() for _ in range(n - 1)] for _ in range(n)]  # [receiver][round]
    met = [env.event() for _ in range(n - 1)]
    counts = [0] * n

    def in_rounds(rank):
        yield env.timeout(start[rank])
        for k in range(n - 1):
            receiver = (rank + k + 1) % n
            reached[rank][k].succeed()
            if semantics != "eager":
                yield reached[receiver][k]
            yield env.timeout(cost[receiver, rank])
            arrived[receiver][k].succeed()
            yield arrived[rank][k]
            if semantics == "barrier":
                counts[k] += 1
                if counts[k] == n:
                    met[k].succeed()
                yield met[k]
        finish[rank] = env.now

    def posted(rank):
        yield env.timeout(start[rank])
        sends = env.process(sends_of(rank))
        for k in range(n - 1):
            yield arrived[rank][k]
        yield sends
        finish[rank] = env.now

    def sends_of(rank):
        for k in range(n - 1):
            receiver = (rank + k + 1) % n
            yield env.timeout(cost[receiver, rank])
            arrived[receiver][k].succeed()

    for rank in range(n):
        env.process(posted(rank) if semantics == "posted" else in_rounds(rank))
    env.run()
    return finish
