"""The training loop: epochs, evaluation, early stopping, what is shown and recorded."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from toolkit.comm.ledger import WHOLE, Phase, StageKey, by_stage
from toolkit.comm.transport import Transport
from toolkit.comm.world import World
from toolkit.config import Config
from toolkit.errors import UserError
from toolkit.graph.part import Part
from toolkit.train.metrics import Scores
from toolkit.train.recorder import RunFolder
from toolkit.train.trainer import Trainer

log = logging.getLogger("bitring")
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
    """The evaluation with the best validation accuracy so far; of equals, the one with the least loss."""

    epoch: int
    scores: dict[str, Scores]

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better. Without validation nodes all are equal, and the last one counts."""
        val = self.scores["val"]
        if math.isnan(val.accuracy):
            return 0.0, 0.0
        return val.accuracy, -math.inf if math.isnan(val.loss) else -val.loss


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
    part: Part, config: Config, world: World, transport: Transport, seed: int, folder: RunFolder | None
) -> Trained:
    """Train from one seed. Every rank calls it; rank 0 has the folder."""
    trainer = Trainer(part, config, world, transport, seed)
    best: Best | None = None
    waited = 0
    epoch_times: list[float] = []
    stages: list[dict[StageKey, float]] = []
    epoch = 0
    for epoch in progress(range(config.train.epochs), world, f"seed {seed}"):
        trainer.ledger.take_seconds()
        begin = time.perf_counter()
        result = trainer.step(epoch)
        epoch_times.append(time.perf_counter() - begin)
        if not math.isfinite(result.loss):
            raise UserError(
                f"the loss is {result.loss} at epoch {epoch + 1}: training diverged; "
                f"lower train.lr ({config.train.lr:g}) or scale the features (data.feature_norm)"
            )
        seconds = trainer.ledger.take_seconds()
        stages.append(seconds)
        record: dict[str, Any] = {
            "seed": seed,
            "epoch": epoch,
            "train_loss": result.loss,
            "train_accuracy": result.accuracy,
            "epoch_s": epoch_times[-1],
            "rank0_stages_s": by_stage(seconds),
        }
        if (epoch + 1) % config.train.eval_every == 0 or epoch + 1 == config.train.epochs:
            begin = time.perf_counter()
            candidate = Best(epoch=epoch, scores=trainer.evaluate())
            record |= {"evaluate_s": time.perf_counter() - begin}
            record |= {split: asdict(scores) for split, scores in candidate.scores.items()}
            if best is None or candidate.rank > best.rank or math.isnan(candidate.scores["val"].accuracy):
                best, waited = candidate, 0
            else:
                waited += 1
            _say_epoch(config, epoch, result.loss, candidate)
        if folder is not None:
            folder.write("epoch", **record)
        if config.train.patience and waited >= config.train.patience:
            log.info("no better validation for %d evaluations: stopped after epoch %d", waited, epoch)
            break
    assert best is not None
    own = medians(stages, epoch_times)
    return Trained(result=_summarise(trainer, world, seed, best, epoch_times, own), trainer=trainer, seconds=own)


def medians(stages: list[dict[StageKey, float]], epoch_times: list[float]) -> dict[StageKey, float]:
    """Median seconds of each stage over epochs; ``dense`` is what no other stage accounts for."""
    keys = sorted(set().union(*stages))
    own = {key: float(np.median([epoch.get(key, 0.0) for epoch in stages])) for key in keys}
    booked = sum(value for (stage, _, _), value in own.items() if stage != "flight")
    own["dense", WHOLE, "forward"] = max(0.0, float(np.median(epoch_times)) - booked)
    return own


def _summarise(
    trainer: Trainer, world: World, seed: int, best: Best, epoch_times: list[float], own: dict[StageKey, float]
) -> SeedResult:
    ledger, every, epochs = trainer.ledger, trainer.config.train.eval_every, len(epoch_times)
    evaluations = epochs // every + (epochs == trainer.config.train.epochs and epochs % every > 0)
    stages = by_stage(own)
    phases: tuple[Phase, ...] = ("train", "evaluate", "setup")
    sums = np.array([*(stages.get(stage, 0.0) for stage in STAGES), *(ledger.phase_bytes(phase) for phase in phases)])
    world.sum_in_place(sums)
    train_bytes, evaluate_bytes, setup_bytes = (round(value) for value in sums[-3:])
    return SeedResult(
        seed=seed,
        best=best,
        epochs=epochs,
        epoch_s=float(np.median(epoch_times)),
        stage_s=dict(zip(STAGES, (sums[:-3] / world.size).tolist(), strict=True)),
        train_bytes=train_bytes // epochs,
        evaluate_bytes=evaluate_bytes // max(evaluations, 1),
        setup_bytes=setup_bytes,
        weight_gradient_bytes=ledger.weight_gradient_bytes // epochs,
        replicas_agree=trainer.replicas_agree(),
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


def _say_epoch(config: Config, epoch: int, loss: float, candidate: Best) -> None:
    every = max(1, config.train.epochs // 10)
    if (epoch + 1) % every == 0 and not shows_bar():
        val, test = candidate.scores["val"], candidate.scores["test"]
        log.info(
            "epoch %d of %d: loss %.4f, validation %.2f %%, test %.2f %%",
            epoch + 1,
            config.train.epochs,
            loss,
            100 * val.accuracy,
            100 * test.accuracy,
        )
