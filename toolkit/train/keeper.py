"""When a run's state is written: at epochs that are due, at best validation, when a signal asks, at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from toolkit.comm.world import World, on_root
from toolkit.errors import UserError
from toolkit.train import state as states
from toolkit.train import tensorfile
from toolkit.train.process import STOP_SIGNALS, Stopped, StopRequests
from toolkit.train.recorder import RunFolder
from toolkit.train.state import Identity, State
from toolkit.train.trainer import Trainer

EVERY_S = 60.0  # between checkpoints where no number of epochs is set
BEST_SHARE = 50  # the best one waits this many times as long as its last writing took, and a second


class Keeper:
    """One run's checkpoints. Every rank has one and calls it in step; rank 0 has the folder and writes."""

    def __init__(
        self, world: World, identity: Identity, folder: RunFolder | None, seeds: int, start: State | None = None
    ) -> None:
        self._world, self._identity, self._folder, self._seeds = world, identity, folder, seeds
        self._start = start
        self.results: list[dict[str, Any]] = list(start.header["results"]) if start else []
        self.requests = StopRequests()
        self._saved_at = time.monotonic()
        self._saved_epochs: int | None = None
        self._epochs = start.epochs if start else 0  # of all seeds
        self._best: dict[str, Any] | None = start.header["best"] if start else None
        self._best_weights: dict[str, Tensor] = start.named("best") if start else {}
        self._best_state: State | None = None  # at rank 0, where it is not on disk yet
        self._best_due = 0.0
        if folder is not None and start is not None:
            self._go_back(folder, start)

    def start_of(self, seed: int) -> State | None:
        """The state to continue from, if this seed was under way."""
        return self._start if self._start is not None and self._start.header["progress"]["seed"] == seed else None

    def better(self, trainer: Trainer, progress: dict[str, Any], rank: tuple[float, float]) -> None:
        """The best validation of this seed so far; kept where no earlier seed had a better one."""
        if self._best is not None and self._best["seed"] != progress["seed"] and tuple(self._best["rank"]) >= rank:
            return
        self._best = {"seed": progress["seed"], "rank": list(rank), **progress["best"]}
        state = self._capture(trainer, progress)
        if state is not None:
            self._best_weights, self._best_state = state.named("weights"), state

    def after_epoch(self, trainer: Trainer, progress: Callable[[], dict[str, Any]]) -> None:
        """Write a checkpoint where one is due; raises Stopped on every rank where a signal has reached any."""
        every = self._identity.config.train.checkpoint_every
        asked = np.zeros(len(STOP_SIGNALS) + 2)
        if self.requests.received:
            asked[STOP_SIGNALS.index(self.requests.received)] = 1
        if self._folder is not None:  # one rank's clock, and its disk, decide for all
            now = time.monotonic()
            asked[-2] = self._best_state is not None and now > self._best_due
            asked[-1] = not every and now - self._saved_at > EVERY_S
        self._world.sum_in_place(asked)
        number = next((n for n, times in zip(STOP_SIGNALS, asked[:-2], strict=True) if times), None)
        self._epochs += 1
        if number or asked[-1] or (every and self._epochs % every == 0):
            self.save(trainer, progress())
        elif asked[-2]:
            on_root(self._world, self._write_best)
        if number:
            raise Stopped(number)

    def save(self, trainer: Trainer, progress: dict[str, Any]) -> None:
        """Write a checkpoint now, the best before it. A refusal (a full disk) is raised on every rank."""
        if self._saved_epochs == progress["epochs"]:
            return
        self._saved_epochs = progress["epochs"]
        state = self._capture(trainer, progress)

        def write() -> None:
            if self._folder is None or state is None:
                return
            self._write_best()
            path = self._folder.path
            self._with_best(state).save(states.checkpoint_path(path, state.epochs))
            states.prune(path, self._identity.config.train.keep_checkpoints)
            self._saved_at = time.monotonic()

        on_root(self._world, write)

    def _capture(self, trainer: Trainer, progress: dict[str, Any]) -> State | None:
        return states.capture(
            trainer,
            self._world,
            self._identity,
            seeds=self._seeds,
            results=list(self.results),
            progress=progress,
            epochs=sum(result["epochs"] for result in self.results) + progress["epochs"],
            best=self._best,
            metrics_bytes=self._folder.metrics_bytes() if self._folder is not None else 0,
        )

    def _with_best(self, state: State) -> State:
        best = {f"best/{name}": tensor for name, tensor in self._best_weights.items()}
        return State(header=state.header, tensors=state.tensors | best)

    def _write_best(self) -> None:
        if self._best_state is None or self._folder is None:
            return
        begin = time.monotonic()
        self._write_weights(self._folder)
        self._with_best(self._best_state).save(states.best_path(self._folder.path))
        self._best_state = None
        self._best_due = time.monotonic() + max(1.0, BEST_SHARE * (time.monotonic() - begin))

    def _write_weights(self, folder: RunFolder) -> None:
        described = {"best": json.dumps(self._best), "config": json.dumps(states.tables(self._identity.config))}
        tensorfile.write(folder.path / "weights.safetensors", self._best_weights, described)

    def _go_back(self, folder: RunFolder, start: State) -> None:
        """What lies in the folder from after ``start``, or damaged, goes: it will be computed again."""
        for path in states.checkpoints(folder.path):
            try:
                later = states.load(path).epochs > start.epochs
            except UserError:
                later = True
            if later:
                path.unlink()
        if self._best_weights:
            self._write_weights(folder)
