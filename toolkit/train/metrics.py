"""Accuracy, F1 and area under the ROC curve over all ranks.

Accuracy and F1 come from counts that add up; the area needs every score in one place, rank 0. Each
equals scikit-learn's on the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolkit.comm.world import World
from toolkit.errors import UserError
from toolkit.graph.part import Part
from toolkit.train.loss import training_loss

SPLITS = ("train", "val", "test")
MAX_AUC_CLASSES = 1024  # one column of scores and labels is gathered for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One split, over all ranks. NaN where the split has no node.

    With one label a node, accuracy and micro F1 are the same, and macro F1 is the mean over the classes that
    occur, as label or as prediction. Multi-label: a label is predicted where its logit is above 0, accuracy is
    the share of nodes whose labels are all right, and macro F1 is the mean over all labels, 0 for one
    that neither occurs nor is predicted.
    """

    loss: float  # without class weights
    accuracy: float
    micro_f1: float
    macro_f1: float
    roc_auc: float = np.nan  # only where train.metric asks for it


def check(metric: str, num_classes: int, multi_label: bool) -> None:
    """Refuse a metric that these classes have no value of. Raises UserError."""
    if metric != "roc_auc":
        return
    if num_classes > MAX_AUC_CLASSES or (num_classes < 2 and not multi_label):
        raise UserError(
            f"train.metric is 'roc_auc' for {num_classes} classes; it is computed for 2 to {MAX_AUC_CLASSES}, "
            "use 'macro_f1'"
        )


def num_right(logits_NC: Tensor, labels: Tensor) -> int:
    """How many nodes have exactly their label, or all of their labels, predicted."""
    if labels.dim() == 1:
        return int((logits_NC.argmax(1) == labels).sum())
    return int(((logits_NC > 0) == (labels > 0)).all(dim=1).sum())


def count(logits_NC: Tensor, labels: Tensor, mask: Tensor) -> NDArray[np.float64]:
    """[3 + 3 C]: summed loss, nodes, nodes all right; then true positives, labels, predictions of each class."""
    classes = logits_NC.shape[1]
    logits, labels = logits_NC[mask], labels[mask]
    loss = training_loss(logits, labels).double().item() if len(labels) else 0.0
    if labels.dim() == 1:
        predicted = logits.argmax(1)
        of_class = [
            torch.bincount(which, minlength=classes) for which in (labels[predicted == labels], labels, predicted)
        ]
    else:
        applies, found = labels > 0, logits > 0
        of_class = [which.sum(dim=0) for which in (applies & found, applies, found)]
    return np.concatenate([[loss, len(labels), num_right(logits, labels)], *(c.cpu().numpy() for c in of_class)])


def scores(counts: NDArray[np.float64], multi_label: bool = False, roc_auc: float = np.nan) -> Scores:
    """Scores from counts summed over ranks."""
    loss, nodes, right = counts[:3]
    hits, labels, predictions = counts[3:].reshape(3, -1)
    if nodes == 0:
        return Scores(loss=np.nan, accuracy=np.nan, micro_f1=np.nan, macro_f1=np.nan)
    both = labels + predictions
    f1 = np.divide(2 * hits, both, out=np.zeros_like(hits), where=both > 0)
    return Scores(
        loss=float(loss / nodes),
        accuracy=float(right / nodes),
        micro_f1=float(2 * hits.sum() / max(both.sum(), 1)),
        macro_f1=float((f1 if multi_label else f1[both > 0]).mean()),
        roc_auc=roc_auc,
    )


def evaluate(logits_NC: Tensor, part: Part, world: World, roc_auc: bool = False) -> dict[str, Scores]:
    """Scores of each split over all ranks; every rank gets them."""
    at = logits_NC.device
    labels = torch.from_numpy(part.labels).to(at)
    masks = (part.train_mask, part.val_mask, part.test_mask)
    counts = np.stack([count(logits_NC, labels, torch.from_numpy(mask).to(at)) for mask in masks])
    world.sum_in_place(counts)
    counts = world.broadcast(counts)  # every rank stops at the same epoch: not even the last bit may differ
    areas = _areas(logits_NC, part, world) if roc_auc else np.full(len(SPLITS), np.nan)
    rows = zip(SPLITS, counts, areas.tolist(), strict=True)
    return {split: scores(row, part.labels.ndim == 2, area) for split, row, area in rows}


def area_under_curve(scores_N: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """Share of pairs, one positive and one negative, whose positive scores higher; ties count half.

    NaN without a pair. Exact: ranks are multiples of a half (Mann and Whitney, 1947).
    """
    num_positive = int(positive.sum())
    pairs = num_positive * (len(positive) - num_positive)
    if pairs == 0:
        return np.nan
    _, place, counts = np.unique(scores_N, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    return float((mean_rank[place][positive].sum() - num_positive * (num_positive + 1) / 2) / pairs)


def _areas(logits_NC: Tensor, part: Part, world: World) -> NDArray[np.float64]:
    """The area of each split: of class 1 of two; else the mean over classes, each against the rest, that have one."""
    columns = _columns(logits_NC, part)
    split = (part.train_mask + 2 * part.val_mask + 3 * part.test_mask).astype(np.int8)
    splits = world.gather(split)
    areas = []
    for score, positive in columns:  # one at a time: rank 0 holds a column of the graph, not its table
        gathered = world.gather((score, positive))
        if gathered is not None and splits is not None:
            whole, of = np.concatenate([pair[0] for pair in gathered]), np.concatenate(splits)
            applies = np.concatenate([pair[1] for pair in gathered])
            areas.append([area_under_curve(whole[of == at], applies[of == at]) for at in (1, 2, 3)])
    made = None
    if world.rank == 0:
        table = np.array(areas)
        defined = ~np.isnan(table)
        sums = np.where(defined, table, 0).sum(axis=0)
        made = np.divide(sums, defined.sum(axis=0), out=np.full(len(SPLITS), np.nan), where=defined.any(axis=0))
    result: NDArray[np.float64] | None = world.broadcast(made)
    assert result is not None
    return result


def _columns(logits_NC: Tensor, part: Part) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """For each class that is looked at, the score of each own node, and whether it is of that class."""
    logits, labels = logits_NC.double().cpu().numpy(), part.labels
    if labels.ndim == 2:
        return [(logits[:, c].copy(), labels[:, c] > 0) for c in range(logits.shape[1])]
    if logits.shape[1] == 2:
        return [(logits[:, 1] - logits[:, 0], labels == 1)]
    shares = torch.softmax(logits_NC.double(), dim=1).cpu().numpy()
    return [(shares[:, c].copy(), labels == c) for c in range(shares.shape[1])]
