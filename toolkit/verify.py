"""`bitring verify`: N ranks against one process: loss, gradients, and weights after k steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.comm.transport import Nothing, Transport
from toolkit.comm.world import Solo, World
from toolkit.config import Config
from toolkit.graph.data import Graph
from toolkit.graph.part import Part, whole
from toolkit.train.trainer import Trainer, parameter_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Largest relative differences between N ranks and one process; 0 means equal bits.

    A tensor's difference is max |a - b| / max |b|, b the one process's.
    """

    steps: int
    loss: float
    gradients: float
    worst_gradient: str
    weights: float
    worst_weight: str

    @property
    def largest(self) -> float:
        return max(self.loss, self.gradients, self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """First loss and gradients, last weights."""

    loss: float
    gradients: list[Tensor]
    weights: list[Tensor]


def follow(part: Part, config: Config, world: World, transport: Transport, steps: int) -> Trajectory:
    """Take ``steps`` steps and keep what verify compares."""
    trainer = Trainer(part, config, world, transport)
    first = trainer.gradients(0)
    gradients = [p.grad.clone() for p in trainer.parameters if p.grad is not None]
    trainer.optimizer.step()
    for epoch in range(1, steps):
        trainer.step(epoch)
    return Trajectory(first.loss, gradients, parameter_copies(trainer.parameters))


def single_process(graph: Graph, config: Config, steps: int) -> Trajectory:
    """The same steps in one process, whole rows, no exchange, no pruning: the reference."""
    reference = dataclasses.replace(
        config, method=dataclasses.replace(config.method, name="vanilla", plan="paper", codec="float32")
    )
    return follow(whole(graph), reference, Solo(), Nothing(), steps)


def compare(ours: Trajectory, reference: Trajectory, config: Config, part: Part, steps: int) -> Verification:
    """Differences between two trajectories of the same configuration."""
    from toolkit.nn.model import Network

    names = [n for n, _ in Network(config.model, part.num_features, part.num_classes, 0).named_parameters()]
    gradient, worst_gradient = _worst(ours.gradients, reference.gradients, names)
    weight, worst_weight = _worst(ours.weights, reference.weights, names)
    return Verification(
        steps=steps,
        loss=abs(ours.loss - reference.loss) / max(abs(reference.loss), 1e-30),
        gradients=gradient,
        worst_gradient=worst_gradient,
        weights=weight,
        worst_weight=worst_weight,
    )


def _worst(ours: list[Tensor], reference: list[Tensor], names: list[str]) -> tuple[float, str]:
    differences = [relative_difference(a, b) for a, b in zip(ours, reference, strict=True)]
    index = max(range(len(names)), key=lambda i: differences[i])
    return differences[index], names[index]


def relative_difference(a: Tensor, b: Tensor) -> float:
    """max |a - b| / max |b|; inf where either is not finite."""
    difference = (a - b).abs().max().item() / max(b.abs().max().item(), torch.finfo(b.dtype).tiny)
    return difference if difference == difference else float("inf")
