"""The state of a run, as a checkpoint keeps it, and where checkpoints lie in a run folder.

    checkpoints/epoch-000120.ckpt    the state after 120 epochs (of all seeds together); the last ones are kept
    checkpoints/best.ckpt            the state at the best validation so far
    weights.safetensors              the weights at the best validation, for other programs

All three are safetensors files with a checksum (tensorfile.py). No generator's state is in them: everything
random is keyed by seed, epoch, layer and node.

    weights/...      every tensor of the network            optimizer/<number>/...   of each parameter
    best/...         the weights at the best validation     sent/<phase>/<layer>/<direction>   [N, N] bytes
    adaptive/...     widths in force, and the traces of those under way (adaptive.py)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from toolkit import __version__
from toolkit import config as configs
from toolkit.comm.ledger import ByteKey
from toolkit.comm.world import World
from toolkit.errors import UserError
from toolkit.graph.cache import CachedPartition
from toolkit.train import tensorfile
from toolkit.train.trainer import Trainer

FORMAT, VERSION = "bitring checkpoint", 1
FOLDER = "checkpoints"
# May differ on resume: they change nothing that a run computes, or say how far it goes.
FREE = {
    "run": {"name", "out", "timeout_s", "grace_s", "tensorboard"},
    "data": {"root", "path"},  # what lies there is compared by its content
    "partition": {"cache"},
    "train": {"epochs", "threads", "checkpoint_every", "keep_checkpoints", "noise_every"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a checkpoint must share with the run that continues from it."""

    config: configs.Config
    graph: str  # name and fingerprint
    partition: str  # digest of every rank's file
    ranks: int

    @staticmethod
    def of(config: configs.Config, partition: CachedPartition, ranks: int) -> Identity:
        files = json.dumps(partition.meta["sha256"], sort_keys=True)
        return Identity(
            config=config,
            graph=partition.folder.name.rpartition("-k")[0],
            partition=hashlib.sha256(files.encode()).hexdigest(),
            ranks=ranks,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """One moment of a run: JSON values in ``header``, and tensors. Whole at rank 0; on resume on every rank."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def config(self) -> configs.Config:
        return configs.from_tables(self.header["config"], "the checkpoint's configuration")

    @property
    def epochs(self) -> int:
        """Epochs trained, of all seeds."""
        return int(self.header["epochs"])

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under ``prefix/``, without it."""
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(f"{prefix}/")}

    def save(self, path: Path) -> None:
        """Write it, whole or not at all. UserError when the disk is full."""
        metadata = {"format": FORMAT, "version": str(VERSION), "state": json.dumps(self.header)}
        tensorfile.write(path, self.tensors, metadata)


def load(path: Path) -> State:
    """Read a checkpoint. UserError when it is damaged, foreign, or written by a newer bitring."""
    try:
        tensors, metadata = tensorfile.read(path)
        if metadata.get("format") != FORMAT:
            raise tensorfile.Damaged(f"is no checkpoint: it calls itself {metadata.get('format')!r}")
        if (version := int(metadata["version"])) > VERSION:
            raise UserError(
                f"{path} is a checkpoint of format {version}, and this bitring {__version__} reads {VERSION}; "
                "continue with the newer bitring that wrote it"
            )
        header = json.loads(metadata["state"])
        if not isinstance(header, dict):
            raise TypeError
        return State(header=header, tensors=tensors)
    except OSError as error:
        raise UserError(f"can't read the checkpoint {path}: {error.strerror}") from None
    except tensorfile.Damaged as error:
        raise UserError(f"the checkpoint {path} {error}") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"the checkpoint {path} is damaged: its header is incomplete") from None


def capture(trainer: Trainer, world: World, identity: Identity, **values: Any) -> State | None:
    """The state of this moment, copied, at rank 0; None elsewhere. Every rank calls it."""
    ledger = trainer.ledger
    sent = world.gather((ledger.sent, ledger.weight_gradient_bytes))
    if sent is None:
        return None
    weights = {f"weights/{name}": _copy(t) for name, t in trainer.network.state_dict().items()}
    optimizer, optimizer_tensors = _split_optimizer(trainer.optimizer)
    counts = {
        f"sent/{phase}/{layer}/{direction}": torch.from_numpy(np.stack([of[phase, layer, direction] for of, _ in sent]))
        for phase, layer, direction in sent[0][0]
    }
    adaptive, adaptive_tensors = (None, {}) if trainer.adaptive is None else trainer.adaptive.to_state()
    widths = {f"adaptive/{name}": tensor for name, tensor in adaptive_tensors.items()}
    header = {
        "bitring": __version__,
        "config": tables(identity.config),
        "graph": identity.graph,
        "partition": identity.partition,
        "ranks": identity.ranks,
        "optimizer": optimizer,
        "weight_gradient_bytes": [of for _, of in sent],
        "adaptive": adaptive,
        **values,
    }
    return State(header=header, tensors=weights | optimizer_tensors | counts | widths)


def restore(state: State, trainer: Trainer, rank: int, ranks: int) -> bool:
    """Put ``state`` into a trainer. False where the byte counters begin anew, as the number of ranks is another."""
    trainer.network.load_state_dict(state.named("weights"))
    trainer.optimizer.load_state_dict(_join_optimizer(state))
    if trainer.adaptive is not None:
        trainer.adaptive.take(state.header.get("adaptive"), state.named("adaptive"))
    if state.header["ranks"] != ranks:
        return False
    trainer.ledger.sent = {}
    for name, counts in state.named("sent").items():
        phase, layer, direction = name.split("/")
        trainer.ledger.sent[cast(ByteKey, (phase, int(layer), direction))] = counts[rank].numpy().copy()
    trainer.ledger.weight_gradient_bytes = state.header["weight_gradient_bytes"][rank]
    return True


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _split_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """JSON values and tensors of an optimiser's state."""
    whole = optimizer.state_dict()
    tensors, plain = {}, {}
    for number, entries in whole["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{number}/{name}"] = _copy(value)
            else:
                plain[f"{number}/{name}"] = value
    return {"groups": whole["param_groups"], "plain": plain}, tensors


def _join_optimizer(state: State) -> dict[str, Any]:
    entries: dict[int, dict[str, Any]] = {}
    for key, value in [*state.header["optimizer"]["plain"].items(), *state.named("optimizer").items()]:
        number, _, name = key.partition("/")
        entries.setdefault(int(number), {})[name] = value.clone() if isinstance(value, Tensor) else value
    return {"state": entries, "param_groups": state.header["optimizer"]["groups"]}


def tables(config: configs.Config) -> dict[str, dict[str, Any]]:
    return dataclasses.asdict(config)


def check_config(state: State, config: configs.Config, path: Path) -> None:
    """UserError naming every key in which ``config`` differs and may not; epochs may grow, not shrink."""
    before, now = tables(state.config), tables(config)
    different = [
        f"{section}.{key} was {before[section][key]!r} and is {now[section][key]!r}"
        for section, table in now.items()
        for key in table
        if key not in FREE.get(section, ()) and before[section][key] != now[section][key]
    ]
    if different:
        raise UserError(
            f"can't continue the run in {path} with another configuration: {'; '.join(different)}; "
            "set it as it was, or start a new run"
        )


def check_length(state: State, config: configs.Config, seeds: int | None, path: Path) -> bool:
    """Whether more is to be trained than the run set out to; UserError for less than is done."""
    before, now, done = state.config.train.epochs, config.train.epochs, state.header["progress"]["epochs"]
    several = len(state.header["results"])
    if now < done or (several and now != before):
        remedy = f"give at least {done}" if now < done else f"set {before}: earlier seeds ended there"
        raise UserError(f"the run in {path} has trained {done} epochs of {before}, and train.epochs is {now}; {remedy}")
    if now != before and config.train.schedule != "constant":
        raise UserError(
            f"the learning rate of the run in {path} falls over its {before} epochs (train.schedule "
            f"{config.train.schedule!r}), and train.epochs is {now}; set {before}, or start a new run"
        )
    if seeds is not None and seeds <= several:
        raise UserError(f"the run in {path} is at its seed number {several + 1}, and --seeds is {seeds}; leave it out")
    return now > before or (seeds or 0) > state.header["seeds"]


def check_graph(state: State, identity: Identity, path: Path) -> None:
    """UserError when the graph, or at the same number of ranks the partition, is not that of the checkpoint."""
    if state.header["graph"] != identity.graph:
        raise UserError(
            f"the run in {path} trained on the graph {state.header['graph']}, and the configuration's is "
            f"{identity.graph} now: its files have changed; start a new run"
        )
    if state.header["ranks"] == identity.ranks and state.header["partition"] != identity.partition:
        raise UserError(
            f"the partition over {identity.ranks} ranks is not the one that the run in {path} began with, so its "
            "sums would differ; restore the partition cache or start a new run"
        )


def checkpoint_path(run: Path, epochs: int) -> Path:
    return run / FOLDER / f"epoch-{epochs:06d}.ckpt"


def best_path(run: Path) -> Path:
    return run / FOLDER / "best.ckpt"


def checkpoints(run: Path) -> list[Path]:
    """Those of a run, the newest first; the best one stands last."""
    found = [(int(m[1]), p) for p in (run / FOLDER).glob("epoch-*.ckpt") if (m := re.fullmatch(r"epoch-(\d+)", p.stem))]
    best = [best_path(run)] if best_path(run).exists() else []
    return [path for _, path in sorted(found, reverse=True)] + best


def newest(run: Path, warn: Any = lambda text: None) -> State:
    """The newest checkpoint that can be read. A damaged one is told; UserError when none is left.

    Going back one costs time and no accuracy: what comes after it is computed again, to the same bits.
    """
    if not run.is_dir():
        raise UserError(f"there is no run folder {run}; name one with --resume")
    refusals = []
    for path in checkpoints(run):
        try:
            state = load(path)
        except UserError as error:
            if "newer bitring" in str(error):
                raise
            refusals.append(str(error))
            continue
        for refusal in refusals:
            warn(f"{refusal}; continuing from {path.name}")
        return state
    if refusals:
        raise UserError(f"{refusals[0]}, and {run} holds no other; start a new run")
    raise UserError(f"{run} holds no checkpoint to continue from; start a new run with --run-dir")


def prune(run: Path, keep: int) -> None:
    """Delete all but the ``keep`` newest checkpoints, and what an interrupted write has left."""
    old = [path for path in checkpoints(run) if path != best_path(run)][keep:]
    for path in [*old, *(run / FOLDER).glob(".writing-*")]:
        with contextlib.suppress(OSError):
            path.unlink()
