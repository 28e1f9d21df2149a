"""One rank's training state, and one epoch of it."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolkit import config as configs
from toolkit import methods
from toolkit import plan as planning
from toolkit.comm import codec as codecs
from toolkit.comm import device as devices
from toolkit.comm import widths
from toolkit.comm.halo import RangeTrace, RowTap
from toolkit.comm.ledger import Ledger
from toolkit.comm.reduce import gradient_sum
from toolkit.comm.transport import Nothing, Transport
from toolkit.comm.world import MpiWorld, World
from toolkit.errors import UserError
from toolkit.graph.part import Part
from toolkit.nn.model import Network
from toolkit.train import metrics
from toolkit.train.adaptive import Adaptive
from toolkit.train.engine import Engine
from toolkit.train.loss import class_weights, training_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """Training loss and accuracy under dropout, over all ranks."""

    loss: float
    accuracy: float


class Trainer:
    """A model, its optimiser and this rank's part. Every rank makes one and calls it in step.

    ``device``: where it computes; None: as train.device says.
    """

    def __init__(
        self,
        part: Part,
        config: configs.Config,
        world: World,
        transport: Transport,
        seed: int | None = None,
        device: devices.Device | None = None,
    ) -> None:
        methods.lookup(config.method)
        self.part, self.config, self.world = part, config, world
        self.seed = config.run.seed if seed is None else seed
        dtype = getattr(torch, config.train.dtype)
        shapes = planning.layer_shapes(config.model, part.num_features, part.num_classes)
        device = device or devices.make(config.train.device, world)
        self.ledger = Ledger(ranks=world.size, clock=devices.CudaClock() if isinstance(device, devices.Cuda) else None)
        self.adaptive = Adaptive(world, config.method, self.seed) if config.method.widths == "adaptive" else None
        self.engine = Engine(
            part=part,
            kind=config.model.kind,
            shapes=shapes,
            plan=planning.plan_of(config, part.num_features, part.num_classes),
            transport=transport,
            ledger=self.ledger,
            codec=codecs.make(config.method.codec, dtype),
            widths=self.adaptive or widths.make(config.method, self.seed),
            coded=functools.partial(planning.by_codec, config.method),
            dtype=dtype,
            device=device,
            overlap=config.method.overlap,
        )
        network = Network(config.model, part.num_features, part.num_classes, self.seed, world)
        self.network = network.to(self.engine.at, dtype)
        self.parameters = list(self.network.parameters())
        self.optimizer = make_optimizer(self.network, config.train)
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in self.parameters)
        self.sum_gradients = gradient_sum(
            world, config.train.reduction, self.parameters, overlap=config.train.overlap_gradients
        )
        metrics.check(config.train.metric, part.num_classes, part.labels.ndim == 2)
        weights = class_weights(
            config.train.class_weights, part.labels[part.train_mask], part.num_classes, world, dtype
        )
        self._class_weights = None if weights is None else weights.to(self.engine.at)
        self._train_labels = torch.from_numpy(part.labels[part.train_mask]).to(self.engine.at)
        self._train_mask = torch.from_numpy(part.train_mask).to(self.engine.at)

    def gradients(self, epoch: int) -> EpochResult:
        """Forward and backward: leaves the whole graph's gradients in every parameter's ``grad``.

        The loss is the sum over this rank's training nodes over the *global* number of training
        nodes: sums of local means would depend on the partition.
        """
        ledger = self.ledger
        self.network.train()
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.engine.forward(self.network, "train", self.seed, epoch)[self._train_mask]
        loss = training_loss(logits, self._train_labels, self._class_weights) / self.part.num_train
        loss.backward()  # type: ignore[no-untyped-call]
        totals = np.array([loss.item(), float(metrics.num_right(logits, self._train_labels))])
        with ledger.stage("weight_gradients"):
            self.sum_gradients([p.grad for p in self.parameters if p.grad is not None])
            self.world.sum_in_place(totals)
        ledger.weight_gradient_bytes += self.gradient_bytes if self.world.size > 1 else 0
        return EpochResult(loss=float(totals[0]), accuracy=float(totals[1] / self.part.num_train))

    @contextmanager
    def aside(self, trace: RangeTrace | None = None, tap: RowTap | None = None) -> Iterator[None]:
        """Passes whose bytes, seconds and ranges count for nothing, and that move no running mean of a normalisation.

        ``trace`` is told their ranges, ``tap`` their rows.
        """
        ledger, usual = self.ledger, (self.engine.trace, self.engine.tap)
        self.engine.trace, self.engine.tap = trace, tap
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        sent = {key: count.copy() for key, count in ledger.sent.items()}
        gradient_bytes, seconds = ledger.weight_gradient_bytes, ledger.seconds.copy()
        round_ends_s = ledger.round_ends_s.copy()
        try:
            yield
        finally:
            ledger.sent, ledger.weight_gradient_bytes, ledger.seconds = sent, gradient_bytes, seconds
            ledger.round_ends_s = round_ends_s
            for buffer, before in buffers:
                buffer.copy_(before)
            self.engine.trace, self.engine.tap = usual

    def step(self, epoch: int) -> EpochResult:
        """One epoch: gradients and an update."""
        if self.adaptive is not None:
            self.adaptive.before_epoch(self, epoch)
        result = self.gradients(epoch)
        self.update(epoch)
        if self.adaptive is not None:
            self.adaptive.after_epoch(self, epoch)
        return result

    def update(self, epoch: int) -> None:
        """Apply the gradients: the learning rate of this epoch, clipping, the optimiser's step."""
        train = self.config.train
        with self.ledger.stage("optimizer"):
            if train.clip_norm:
                torch.nn.utils.clip_grad_norm_(self.parameters, train.clip_norm)
            for group in self.optimizer.param_groups:
                group["lr"] = train.lr * learning_rate_factor(epoch, train)
            self.optimizer.step()

    def evaluate(self) -> dict[str, metrics.Scores]:
        """Scores of every split, exact communication, no dropout."""
        self.network.eval()
        with torch.no_grad():
            logits = self.engine.forward(self.network, "evaluate", self.seed, 0)
        return metrics.evaluate(logits, self.part, self.world, roc_auc=self.config.train.metric == "roc_auc")

    def replicas_agree(self) -> bool:
        """Whether every rank holds the same weights, bit for bit."""
        checksum = zlib.crc32(b"".join(p.detach().cpu().numpy().tobytes() for p in self.parameters))
        checksums = self.world.broadcast(self.world.gather(checksum))
        return checksums is not None and len(set(checksums)) == 1


def learning_rate_factor(epoch: int, train: configs.Train) -> float:
    """What train.lr is multiplied by: a function of the epoch alone, so that a resumed run agrees."""
    if epoch < train.warmup_epochs:
        return (epoch + 1) / (train.warmup_epochs + 1)
    done = (epoch - train.warmup_epochs) / max(1, train.epochs - train.warmup_epochs)
    if train.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1 - done if train.schedule == "linear" else 1.0


def make_optimizer(network: Network, train: configs.Train) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD, weight decay on all layers or on the first alone."""
    first: list[Tensor] = list(network.layers[0].parameters())
    ids = {id(p) for p in first}
    rest = [p for p in network.parameters() if id(p) not in ids]
    rest_decay = train.weight_decay if train.decay_layers == "all" else 0.0
    groups = [{"params": first, "weight_decay": train.weight_decay}, {"params": rest, "weight_decay": rest_decay}]
    if not rest:
        groups.pop()
    if train.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=train.lr, momentum=train.momentum)
    return (torch.optim.Adam if train.optimizer == "adam" else torch.optim.AdamW)(groups, lr=train.lr)


def make_transport(world: World, method: configs.Method) -> Transport:
    """The transport of a configuration; one process alone needs none."""
    if not isinstance(world, MpiWorld):
        if world.size > 1:
            raise UserError("this world brings its own transport")
        return Nothing()
    if world.size == 1:
        return Nothing()
    if method.transport == "horovod":
        from toolkit.comm.horovod import HorovodAlltoall

        return HorovodAlltoall(world.comm)
    from toolkit.comm.ring import Ring

    return Ring(world.comm, method.ring)


def parameter_copies(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach().clone() for p in parameters]
