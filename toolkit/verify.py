"""`bitring verify`: N ranks against one process: loss, gradients, and weights after k steps."""

from __future__ import annotations

import dataclasses
import math
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

    A tensor's difference is the norm ||a - b|| / ||b||, b the one process's. Norms, not entries: Adam
    divides by the gradient's size, so the entry whose gradient is all rounding moves by a whole
    learning rate. A tensor that is zero but for rounding (a gradient that cancels out) is measured
    against 1 % of the largest norm of any, or of the loss. ``weight_entry`` is the largest |a - b| of all.
    """

    steps: int
    loss: float
    gradients: float
    worst_gradient: str
    weights: float
    worst_weight: str
    weight_entry: float

    @property
    def largest(self) -> float:
        return max(self.loss, self.gradients, self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """Every loss, the first gradients, the last weights."""

    losses: list[float]
    gradients: list[Tensor]
    weights: list[Tensor]


def follow(part: Part, config: Config, world: World, transport: Transport, steps: int) -> Trajectory:
    """Take ``steps`` steps and keep what verify compares."""
    trainer = Trainer(part, config, world, transport)
    losses = [trainer.gradients(0).loss]
    gradients = [p.grad.clone() for p in trainer.parameters if p.grad is not None]
    trainer.update(0)
    losses += [trainer.step(epoch).loss for epoch in range(1, steps)]
    return Trajectory(losses, gradients, parameter_copies(trainer.parameters))


def single_process(graph: Graph, config: Config, steps: int) -> Trajectory:
    """The same steps in one process, whole rows, no exchange, no pruning: the reference."""
    reference = dataclasses.replace(
        config,
        method=dataclasses.replace(config.method, name="vanilla", plan="paper", codec="float32", quantise_all=False),
    )
    return follow(whole(graph), reference, Solo(), Nothing(), steps)


def compare(ours: Trajectory, reference: Trajectory, config: Config, part: Part, steps: int) -> Verification:
    """Differences between two trajectories of the same configuration."""
    from toolkit.nn.model import Network

    names = [n for n, _ in Network(config.model, part.num_features, part.num_classes, 0).named_parameters()]
    gradient, worst_gradient = _worst(ours.gradients, reference.gradients, names, abs(reference.losses[0]))
    weight, worst_weight = _worst(ours.weights, reference.weights, names, 0.0)
    return Verification(
        steps=steps,
        loss=max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(ours.losses, reference.losses, strict=True)),
        gradients=gradient,
        worst_gradient=worst_gradient,
        weights=weight,
        worst_weight=worst_weight,
        weight_entry=max((a - b).abs().max().item() for a, b in zip(ours.weights, reference.weights, strict=True)),
    )


FLOOR = 1e-2  # of the largest norm of any tensor, and of the loss: smaller ones are measured against that


def _worst(ours: list[Tensor], reference: list[Tensor], names: list[str], scale: float) -> tuple[float, str]:
    floor = FLOOR * max(scale, *(b.norm().item() for b in reference))
    differences = [relative_difference(a, b, floor) for a, b in zip(ours, reference, strict=True)]
    index = max(range(len(names)), key=lambda i: differences[i])
    return differences[index], names[index]


def relative_difference(a: Tensor, b: Tensor, floor: float = 0.0) -> float:
    """||a - b|| / max(||b||, floor); inf where either is not finite."""
    scale = max(b.norm().item(), floor, torch.finfo(b.dtype).tiny)
    difference = (a - b).norm().item() / scale
    return difference if math.isfinite(difference) else math.inf
