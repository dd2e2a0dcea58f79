"""Classification metrics as integer counts, so that they are exact however a set was cut into batches and processes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

_LOSS_UNIT = 2.0**-20  # nats
_LARGEST_LOSS = 2.0**20  # nats; 2^23 images of it still fit 64 bits


class Metrics(NamedTuple):
    """What was measured over a whole set.

    Attributes:
        loss: Mean cross entropy in nats; NaN where any image's loss was not finite, or above 2^20.
        confusion: int64 (classes, classes) on the CPU; rows are the true classes, columns the predicted ones.
        top5_correct: How many images had their class among the five best; None with five classes or fewer.
        own: The values of further metrics, by name.
    """

    loss: float
    confusion: Tensor
    top5_correct: int | None
    own: Mapping[str, float] = MappingProxyType({})

    @property
    def total(self) -> int:
        """How many images were measured."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """How many were classified correctly."""
        return int(self.confusion.diagonal().sum())

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy in [0, 1]."""
        return self.correct / max(self.total, 1)

    @property
    def per_class(self) -> list[dict[str, float | int]]:
        """Precision, recall and F1 of each class in [0, 1], and how many images it has; 0 where undefined."""
        hits = self.confusion.diagonal().tolist()
        true, predicted = self.confusion.sum(1).tolist(), self.confusion.sum(0).tolist()
        return [
            {"precision": h / max(p, 1), "recall": h / max(t, 1), "f1": 2 * h / max(t + p, 1), "total": t}
            for h, t, p in zip(hits, true, predicted, strict=True)
        ]

    @property
    def f1(self) -> float:
        """Mean F1 over the classes that occur among the labels or the predictions, in [0, 1]."""
        occurs = (self.confusion.sum(0) + self.confusion.sum(1) > 0).tolist()
        scores = [row["f1"] for row, there in zip(self.per_class, occurs, strict=True) if there]
        return sum(scores) / max(len(scores), 1)

    def rates(self) -> dict[str, float]:
        """The metrics worth a curve, by their short names."""
        top5 = {} if self.top5_correct is None else {"top5": self.top5_correct / max(self.total, 1)}
        return {"loss": self.loss, "accuracy": self.accuracy, **top5, "f1": self.f1, **self.own}

    def as_dict(self) -> dict[str, Any]:
        """Rates beside the counts they come from, as plain data."""
        top5 = {} if self.top5_correct is None else {"top5_correct": self.top5_correct}
        counts = {"correct": self.correct, "total": self.total, **top5}
        return {**self.rates(), **counts, "confusion_matrix": self.confusion.tolist()}


class ClassificationMetrics(Metric):
    """Counts everything a classifier is judged by in one pass, synchronised by torchmetrics.

    All states are integers (the loss too, in units of 2^-20 nats): integers add up alike in any order, so 1 process and
    7 report the same metrics to the last bit.

    Args:
        num_classes: How many classes there are.
    """

    full_state_update = False
    confusion: Tensor
    top5_hits: Tensor
    loss_units: Tensor
    non_finite: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_state("confusion", torch.zeros(num_classes * num_classes + 1, dtype=torch.int64), dist_reduce_fx="sum")
        for name in ("top5_hits", "loss_units", "non_finite"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Counts a batch without waiting for the device.

        Args:
            logits: float (N, classes).
            labels: int64 (N,); images with a negative label are not counted.
            losses: float (N,), each image's cross entropy in nats; above 2^20 it counts as not finite.
        """
        counted = labels >= 0
        nowhere = self.num_classes * self.num_classes  # the extra last cell takes what is not counted
        cells = torch.where(counted, labels * self.num_classes + logits.argmax(1), nowhere)
        self.confusion.scatter_add_(0, cells, torch.ones_like(cells))
        if self.num_classes > 5:
            # -1 is never among the best
            self.top5_hits += (logits.topk(5).indices == labels[:, None]).sum()
        finite = losses.abs() <= _LARGEST_LOSS  # nor is NaN
        units = torch.where(counted & finite, losses.float() / _LOSS_UNIT, 0).round().to(torch.int64)
        self.loss_units += units.sum()
        self.non_finite += (counted & ~finite).sum()

    def counts(self) -> dict[str, Tensor]:
        """What was counted since the last reset, on all processes together; all must ask."""
        with self.sync_context():
            return {name: getattr(self, name).cpu().clone() for name in self._defaults}

    def set_counts(self, counts: dict[str, Tensor]) -> None:
        """Goes on from counts, which one process takes up and the others do not."""
        for name, value in counts.items():
            setattr(self, name, value.to(self.device))

    def compute(self) -> Metrics:
        """The metrics of all images counted since the last reset, on all processes."""
        confusion = self.confusion[:-1].view(self.num_classes, self.num_classes).cpu()
        loss = int(self.loss_units) * _LOSS_UNIT / max(int(confusion.sum()), 1)
        return Metrics(
            loss=float("nan") if self.non_finite else loss,
            confusion=confusion,
            top5_correct=int(self.top5_hits) if self.num_classes > 5 else None,
        )


def modes(num_classes: int) -> dict[str, str]:
    """Whether the least or the greatest of each of :meth:`Metrics.rates` is best, ``min`` or ``max``."""
    measured = Metrics(0.0, torch.zeros(num_classes, num_classes), 0 if num_classes > 5 else None).rates()
    return {name: "min" if name == "loss" else "max" for name in measured}
