"""What training lowers: a sum over nodes, so that ranks add up to the whole graph's loss."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from toolkit.comm.world import World


def training_loss(logits_NC: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The summed loss of N nodes: one number, zero without nodes.

    Labels [N] int64: cross-entropy; ``weights`` [C] is of each class. Multi-label, [N, C] of 0 and 1: binary
    cross-entropy, over C; ``weights`` [2, C] is of each label where it does not apply, and where it does.
    Divide by the whole graph's number of training nodes, weighted or not: see class_weights.
    """
    if labels.dim() == 1:
        return F.cross_entropy(logits_NC, labels, weight=weights, reduction="sum")
    applies = labels.to(logits_NC.dtype)
    each = None if weights is None else torch.where(labels > 0, weights[1], weights[0])
    total = F.binary_cross_entropy_with_logits(logits_NC, applies, weight=each, reduction="sum")
    return total / logits_NC.shape[1]


def class_weights(
    how: Literal["none", "balanced"],
    labels: NDArray[np.int64] | NDArray[np.uint8],
    num_classes: int,
    world: World,
    dtype: torch.dtype,
) -> Tensor | None:
    """Weights for training_loss from this rank's training labels; every rank gets the same.

    balanced: n / (k n_c), where n training nodes of the whole graph are of k classes, n_c of this one; multi-label:
    so for each label, applies or not being its two classes. The weights of the training nodes sum to n, so
    that the loss stays a mean.
    """
    if how == "none":
        return None
    if labels.ndim == 1:
        counts = np.bincount(labels, minlength=num_classes).astype(np.float64)[:, None]
    else:
        applies = labels.sum(axis=0, dtype=np.float64)
        counts = np.stack([len(labels) - applies, applies])
    world.sum_in_place(counts)
    counts = world.broadcast(counts)
    occurs = counts > 0
    weights = np.divide(counts.sum(axis=0), occurs.sum(axis=0) * counts, out=np.zeros_like(counts), where=occurs)
    return torch.from_numpy(weights.squeeze(1) if labels.ndim == 1 else weights).to(dtype)
