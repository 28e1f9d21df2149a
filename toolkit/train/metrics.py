"""Accuracy and F1 over all ranks, from counts that add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from toolkit.comm.world import World
from toolkit.graph.part import Part

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One split, over all ranks. NaN where the split has no node."""

    loss: float
    accuracy: float  # the micro F1 too: with one label a node they are the same
    micro_f1: float
    macro_f1: float  # mean over the classes that occur, as label or as prediction


def count(logits_NC: Tensor, labels: Tensor, mask: Tensor) -> NDArray[np.float64]:
    """[2 + 3 C]: summed loss, nodes, then true positives, labels and predictions of each class."""
    classes = logits_NC.shape[1]
    logits, labels = logits_NC[mask], labels[mask]
    predicted = logits.argmax(1)
    loss = F.cross_entropy(logits, labels, reduction="sum").double().item() if len(labels) else 0.0
    counts = [torch.bincount(which, minlength=classes) for which in (labels[predicted == labels], labels, predicted)]
    return np.concatenate([[loss, len(labels)], *(c.numpy() for c in counts)])


def scores(counts: NDArray[np.float64]) -> Scores:
    """Scores from counts summed over ranks."""
    loss, nodes = counts[:2]
    hits, labels, predictions = counts[2:].reshape(3, -1)
    if nodes == 0:
        return Scores(loss=np.nan, accuracy=np.nan, micro_f1=np.nan, macro_f1=np.nan)
    occurs = labels + predictions > 0
    f1 = 2 * hits[occurs] / (labels + predictions)[occurs]
    accuracy = float(hits.sum() / nodes)
    return Scores(loss=float(loss / nodes), accuracy=accuracy, micro_f1=accuracy, macro_f1=float(f1.mean()))


def evaluate(logits_NC: Tensor, part: Part, world: World) -> dict[str, Scores]:
    """Scores of each split over all ranks; every rank gets them."""
    labels = torch.from_numpy(part.labels)
    masks = (part.train_mask, part.val_mask, part.test_mask)
    counts = np.stack([count(logits_NC, labels, torch.from_numpy(mask)) for mask in masks])
    world.sum_in_place(counts)
    counts = world.broadcast(counts)  # every rank stops at the same epoch: not even the last bit may differ
    return {split: scores(row) for split, row in zip(SPLITS, counts, strict=True)}
