"""Metrics of a decision between two classes by a threshold that validation chooses."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torchmetrics.classification import BinarySensitivityAtSpecificity
from torchmetrics.functional.classification import binary_recall, binary_specificity
from torchmetrics.utilities import dim_zero_cat

from project.model.metrics import Accuracy, MacroF1


class Decided:
    """Mixin: decides for the positive class from a threshold on that was chosen before."""

    chosen: float | None = None
    positive = 1

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts decisions; without a threshold, the more probable class."""
        if self.chosen is not None:
            is_positive = (preds[:, self.positive] >= self.chosen).long()
            preds = F.one_hot(is_positive if self.positive else 1 - is_positive, 2).to(preds)
        super().update(preds, target)  # type: ignore[misc]  # of the metric


class DecidedAccuracy(Decided, Accuracy):
    """Accuracy of these decisions."""


class DecidedF1(Decided, MacroF1):
    """F1 of these decisions."""


class OperatingPoint(BinarySensitivityAtSpecificity):
    """The greatest sensitivity with a specificity, or both at a threshold that was chosen before."""

    chosen: float | None = None
    positive = 1

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keeps the probabilities of the positive class."""
        super().update(preds[:, self.positive], (target == self.positive).long())

    def compute(self) -> dict[str, Any]:  # type: ignore[override]  # torchmetrics returns a pair
        """Returns both rates, from 0 to 1, and the thresholds of both classes."""
        # torchmetrics returns a million if nothing has that specificity
        threshold = super().compute()[1].clamp(0, 1).item() if self.chosen is None else self.chosen
        positive, labels = (dim_zero_cat(self.preds) >= threshold).long(), dim_zero_cat(self.target)
        return {
            "sensitivity": binary_recall(positive, labels),
            "specificity": binary_specificity(positive, labels),
            "thresholds": [1 - threshold, threshold][:: 1 if self.positive else -1],
        }
