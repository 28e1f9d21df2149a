"""The training loop: epochs, evaluation, early stopping, what is shown and recorded."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from toolkit.comm import position
from toolkit.comm.ledger import WHOLE, Phase, StageKey, by_stage
from toolkit.comm.transport import Transport
from toolkit.comm.world import World
from toolkit.config import Config
from toolkit.errors import UserError
from toolkit.graph.part import Part
from toolkit.train import state as states
from toolkit.train.adaptive import Adaptive
from toolkit.train.keeper import Keeper
from toolkit.train.metrics import Scores
from toolkit.train.noise import measure as measure_noise
from toolkit.train.recorder import RunFolder
from toolkit.train.trainer import Trainer

log = logging.getLogger("bitring")
RECENT = 20  # epochs whose seconds a checkpoint keeps
STAGES = (
    "masks",
    "encode",
    "wait",
    "decode",
    "central",
    "marginal",
    "weight_gradients",
    "optimizer",
    "dense",
    "flight",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The evaluation with the best validation so far (train.metric); of equals, the one with the least loss."""

    epoch: int
    scores: dict[str, Scores]

    def rank(self, metric: str) -> tuple[float, float]:
        """Larger is better. Without validation nodes all are equal, and the last one counts."""
        val = self.scores["val"]
        score = float(getattr(val, metric))
        if math.isnan(score):
            return 0.0, 0.0
        return score, -math.inf if math.isnan(val.loss) else -val.loss


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far the run from one seed has come: all that decides what follows, beside the trainer's state."""

    seed: int
    epochs: int = 0  # done
    best: Best | None = None
    waited: int = 0  # evaluations since the best one
    ended: bool = False  # by early stopping
    counted_epochs: int = 0  # what the byte counters cover: less than all after a resume with other ranks
    counted_evaluations: int = 0
    wall_s: float = 0.0  # of all epochs, evaluation apart
    epoch_times: list[float] = field(default_factory=list)
    stages: list[dict[StageKey, float]] = field(default_factory=list)

    def take(self, candidate: Best, metric: str) -> bool:
        """Note an evaluation; whether it is the best so far."""
        self.counted_evaluations += 1
        better = self.best is None or candidate.rank(metric) > self.best.rank(metric)
        if better or math.isnan(getattr(candidate.scores["val"], metric)):
            self.best, self.waited = candidate, 0
            return True
        self.waited += 1
        return False

    def to_plain(self) -> dict[str, Any]:
        """As JSON values; of the seconds, the last epochs'."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("best", "stages")}
        plain["best"] = None if self.best is None else asdict(self.best)
        plain["epoch_times"] = self.epoch_times[-RECENT:]
        plain["stages"] = [[[*key, value] for key, value in epoch.items()] for epoch in self.stages[-RECENT:]]
        return plain

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> Progress:
        best = None if plain["best"] is None else best_of_plain(plain["best"])
        stages = [{(stage, layer, way): value for stage, layer, way, value in epoch} for epoch in plain["stages"]]
        return Progress(**plain | {"best": best, "stages": stages, "epoch_times": list(plain["epoch_times"])})


def best_of_plain(plain: dict[str, Any]) -> Best:
    return Best(epoch=plain["epoch"], scores={name: Scores(**scores) for name, scores in plain["scores"].items()})


@dataclass(slots=True, kw_only=True)
class SeedResult:
    """One training run from one seed."""

    seed: int
    best: Best
    epochs: int
    epoch_s: float  # median
    stage_s: dict[str, float]  # medians over epochs, means over ranks
    train_bytes: int  # rows sent by all ranks in one training epoch
    evaluate_bytes: int  # ... in one evaluation
    setup_bytes: int  # layer 0's rows, once
    weight_gradient_bytes: int  # the gradients' size: what each rank brings to the sum, an epoch
    replicas_agree: bool
    wall_s: float = 0.0  # of all epochs
    assigning: dict[str, float] = field(default_factory=dict)  # adaptive widths: rank 0's seconds (adaptive.Spent)

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> SeedResult:
        """From dataclasses.asdict: what a checkpoint keeps of the seeds that are done."""
        return SeedResult(**plain | {"best": best_of_plain(plain["best"])})

    @property
    def communication_share(self) -> float:
        """Share of an epoch that ranks spend waiting for rows and summing weight gradients."""
        return (self.stage_s["wait"] + self.stage_s["weight_gradients"]) / self.epoch_s

    @property
    def hidden_share(self) -> float:
        """Share of the messages' time in flight that ranks spend computing, not waiting; NaN if nothing flies."""
        flight = self.stage_s["flight"]
        return max(0.0, 1 - self.stage_s["wait"] / flight) if flight > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What train_seed gives: the result, the trainer as it ended, and this rank's median seconds."""

    result: SeedResult
    trainer: Trainer
    seconds: dict[StageKey, float]


def train_seed(
    part: Part,
    config: Config,
    world: World,
    transport: Transport,
    seed: int,
    folder: RunFolder | None,
    keeper: Keeper | None = None,
    before: Adaptive | None = None,
) -> Trained:
    """Train from one seed, or go on from the keeper's state. Every rank calls it; rank 0 has the folder.

    ``before``: the adaptive widths of an earlier seed, whose measured costs of the network serve here too.
    Raises process.Stopped, on every rank after the same epoch, when a signal has asked the keeper to stop.
    """
    if config.train.patience and part.num_val == 0:
        raise UserError(f"train.patience is {config.train.patience} and there is no validation node; set it to 0")
    trainer = Trainer(part, config, world, transport, seed)
    run = _begin(trainer, world, seed, keeper)
    if trainer.adaptive is not None:
        if keeper is not None:
            trainer.adaptive.stop_asked = lambda: bool(keeper.requests.received)
        trainer.adaptive.prepare(trainer, before)
    for epoch in progress(range(run.epochs, 0 if run.ended else config.train.epochs), world, f"seed {seed}"):
        position.begin_epoch(epoch)
        trainer.ledger.take_seconds()
        # Ranks begin together: what rank 0 alone does between epochs must not pass for others' waiting.
        world.sum_in_place(np.zeros(1))
        begin = time.perf_counter()
        result = trainer.step(epoch)
        run.epoch_times.append(time.perf_counter() - begin)
        run.wall_s += run.epoch_times[-1]
        if not math.isfinite(result.loss):
            raise UserError(
                f"the loss is {result.loss} at epoch {epoch + 1}: training diverged; "
                f"lower train.lr ({config.train.lr:g}) or scale the features (data.feature_norm)"
            )
        seconds = trainer.ledger.take_seconds()
        run.stages.append(seconds)
        run.epochs, run.counted_epochs = epoch + 1, run.counted_epochs + 1
        record: dict[str, Any] = {
            "seed": seed,
            "epoch": epoch,
            "train_loss": result.loss,
            "train_accuracy": result.accuracy,
            "epoch_s": run.epoch_times[-1],
            "rank0_stages_s": by_stage(seconds),
        }
        improved = False
        if (epoch + 1) % config.train.eval_every == 0 or epoch + 1 == config.train.epochs:
            begin = time.perf_counter()
            candidate = Best(epoch=epoch, scores=trainer.evaluate())
            record |= {"evaluate_s": time.perf_counter() - begin}
            record |= {split: asdict(scores) for split, scores in candidate.scores.items()}
            improved = run.take(candidate, config.train.metric)
            _say_epoch(config, seed, epoch, result.loss, candidate)
        if folder is not None:
            folder.write("epoch", **record)
        if folder is not None and trainer.adaptive is not None:
            _record_adaptive(folder, trainer.adaptive, seed, epoch)
        if config.train.noise_every and (epoch + 1) % config.train.noise_every == 0:
            noise = measure_noise(trainer, epoch + 1)
            if folder is not None:
                folder.write("noise", seed=seed, epoch=epoch, layers=[asdict(one) for one in noise])
        if config.train.patience and run.waited >= config.train.patience:
            log.info("no better validation for %d evaluations: stopped after epoch %d", run.waited, epoch + 1)
            run.ended = True
        if keeper is not None:
            _keep(keeper, trainer, run, improved)
        if run.ended:
            break
    if keeper is not None:
        keeper.save(trainer, run.to_plain())
    own = medians(run.stages, run.epoch_times)
    return Trained(result=_summarise(trainer, world, run, own), trainer=trainer, seconds=own)


def _record_adaptive(folder: RunFolder, adaptive: Adaptive, seed: int, epoch: int) -> None:
    """What adaptive widths did in this epoch, and the network's costs where they were measured in it."""
    for kind, values in adaptive.take_lines():
        folder.write(kind, seed=seed, epoch=epoch, **values)
        if kind == "costs" and adaptive.prices is not None:
            folder.keep_machine(adaptive.prices.machine)


def _begin(trainer: Trainer, world: World, seed: int, keeper: Keeper | None) -> Progress:
    start = keeper.start_of(seed) if keeper is not None else None
    if start is None:
        return Progress(seed=seed)
    run = Progress.of_plain(start.header["progress"])
    if not states.restore(start, trainer, world.rank, world.size):
        run.counted_epochs = run.counted_evaluations = 0
    return run


def _keep(keeper: Keeper, trainer: Trainer, run: Progress, improved: bool) -> None:
    if improved and run.best is not None:
        keeper.better(trainer, run.to_plain(), run.best.rank(trainer.config.train.metric))
    keeper.after_epoch(trainer, run.to_plain)


def medians(stages: list[dict[StageKey, float]], epoch_times: list[float]) -> dict[StageKey, float]:
    """Median seconds of each stage over epochs; ``dense`` is what no other stage accounts for."""
    keys = sorted(set().union(*stages))
    own = {key: float(np.median([epoch.get(key, 0.0) for epoch in stages])) for key in keys}
    booked = sum(value for (stage, _, _), value in own.items() if stage != "flight")
    own["dense", WHOLE, "forward"] = max(0.0, float(np.median(epoch_times)) - booked)
    return own


def _summarise(trainer: Trainer, world: World, run: Progress, own: dict[StageKey, float]) -> SeedResult:
    assert run.best is not None, "the last epoch is evaluated"
    ledger, epochs = trainer.ledger, max(run.counted_epochs, 1)
    stages = by_stage(own)
    phases: tuple[Phase, ...] = ("train", "evaluate", "setup")
    sums = np.array([*(stages.get(stage, 0.0) for stage in STAGES), *(ledger.phase_bytes(phase) for phase in phases)])
    world.sum_in_place(sums)
    train_bytes, evaluate_bytes, setup_bytes = (round(value) for value in sums[-3:])
    return SeedResult(
        seed=run.seed,
        best=run.best,
        epochs=run.epochs,
        epoch_s=float(np.median(run.epoch_times)),
        stage_s=dict(zip(STAGES, (sums[:-3] / world.size).tolist(), strict=True)),
        train_bytes=train_bytes // epochs,
        evaluate_bytes=evaluate_bytes // max(run.counted_evaluations, 1),
        setup_bytes=setup_bytes,
        weight_gradient_bytes=ledger.weight_gradient_bytes // epochs,
        replicas_agree=trainer.replicas_agree(),
        wall_s=run.wall_s,
        assigning={} if trainer.adaptive is None else asdict(trainer.adaptive.spent),
    )


def progress(epochs: range, world: World, label: str) -> Iterable[int]:
    """A progress bar at rank 0 where stderr is a terminal; else the plain range."""
    if world.rank != 0 or not shows_bar():
        return epochs
    from tqdm import tqdm

    bar: Iterable[int] = tqdm(epochs, desc=label, unit="epoch", leave=False, file=sys.stderr)
    return bar


def shows_bar() -> bool:
    """Whether a person watches: the launcher says so for its ranks, whose own stderr is a pipe."""
    told = os.environ.get("BITRING_TTY")
    return told == "1" if told is not None else sys.stderr.isatty()


def _say_epoch(config: Config, seed: int, epoch: int, loss: float, candidate: Best) -> None:
    every, metric = max(1, config.train.epochs // 10), config.train.metric
    if (epoch + 1) % every == 0 and not shows_bar():
        val, test = (getattr(candidate.scores[split], metric) for split in ("val", "test"))
        shown = (
            f"test {100 * test:.2f} %" if math.isnan(val) else f"validation {100 * val:.2f} %, test {100 * test:.2f} %"
        )
        log.info("seed %d, epoch %d of %d: loss %.4f, %s", seed, epoch + 1, config.train.epochs, loss, shown)
