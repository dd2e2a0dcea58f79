"""An own metric: the mean of the classes' recalls, by which ``best.ckpt`` is chosen.

python -m project.fit --model examples.metric.BalancedClassifier --monitor val/balanced_accuracy
"""

import torch
from torch import Tensor
from torchmetrics import Metric

from project.model import ImageClassifier


class BalancedAccuracy(Metric):
    """Mean recall of the classes that occur; torchmetrics adds the counts up over the processes."""

    higher_is_better = True
    hits: Tensor
    totals: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        for name in ("hits", "totals"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts a batch."""
        self.hits += target[preds.argmax(1) == target].bincount(minlength=len(self.hits))
        self.totals += target.bincount(minlength=len(self.totals))

    def compute(self) -> Tensor:
        """The metric, from 0 to 1."""
        return (self.hits / self.totals)[self.totals > 0].mean()


class BalancedClassifier(ImageClassifier):
    """A classifier with a further metric."""

    def configure_metrics(self) -> dict[str, Metric]:
        """Adds it to the others."""
        balanced = BalancedAccuracy(len(self.class_names))
        return super().configure_metrics() | {"balanced_accuracy": balanced}
