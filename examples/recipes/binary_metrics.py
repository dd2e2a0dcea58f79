"""Metrics of a decision between two classes by a threshold that validation chooses."""

from collections.abc import Sequence
from typing import Any

import torch
from lightkeeper.exact import UserError
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.classification import BinaryROC
from torchmetrics.utilities import dim_zero_cat

from project.analysis.tables import wilson_interval
from project.model.metrics import Accuracy, MacroF1

_NEVER = 1 + 2**-20  # a threshold above all probabilities, of which float32 has 1, too
_ROUNDING = 1e-6  # of rates in float32


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


class OperatingPoint(BinaryROC):
    """Sensitivity and specificity at the threshold that suits best, or at one chosen before.

    Args:
        sensitivity: The least sensitivity; the threshold has the greatest specificity with it.
        specificity: The least specificity; the threshold has the greatest sensitivity with it.
        costs: Those of a missed positive and of a false alarm; the threshold has the least sum.
            One of the three is given, or none, for a specificity of 0.95.
    """

    chosen: float | None = None
    positive = 1
    higher_is_better = True

    def __init__(
        self,
        sensitivity: float | None = None,
        specificity: float | None = None,
        costs: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if [sensitivity, specificity, costs].count(None) < 2:
            raise UserError(
                "give one of --model.sensitivity, --model.specificity and --model.costs"
            )
        self.sensitivity = sensitivity
        self.specificity = 0.95 if specificity is None else specificity
        self.costs = costs

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keeps the probabilities of the positive class."""
        super().update(preds[:, self.positive], (target == self.positive).long())

    def compute(self) -> dict[str, Any]:  # type: ignore[override]  # torchmetrics returns three
        """Returns both rates, from 0 to 1, their 95% intervals, and both classes' thresholds."""
        shares, labels = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        threshold = self._best(labels) if self.chosen is None else self.chosen
        results: dict[str, Any] = {}
        for name, label in (("sensitivity", 1), ("specificity", 0)):
            found = (shares[labels == label] >= threshold) == bool(label)
            hits, total = int(found.sum()), len(found)
            results[name] = hits / max(total, 1)
            results[f"{name}_interval"] = [*wilson_interval(hits, total)]
        thresholds = [max(1 - threshold, 0.0), threshold][:: 1 if self.positive else -1]
        return results | {"thresholds": thresholds}

    def _best(self, labels: Tensor) -> float:
        """Chooses among the probabilities of the images, from the greatest on."""
        false_alarms, hits, thresholds = super().compute()
        if self.costs is not None:
            miss, alarm = self.costs
            positives = int(labels.sum())
            utility = miss * hits * positives - alarm * false_alarms * (len(labels) - positives)
        elif self.sensitivity is not None:
            utility = torch.where(hits >= self.sensitivity - _ROUNDING, -false_alarms, -2)
        else:
            is_enough = 1 - false_alarms >= self.specificity - _ROUNDING
            utility = torch.where(is_enough, hits, -2)
        best = int(utility.argmax())
        return thresholds[best].item() if best else _NEVER  # torchmetrics puts 1 first
