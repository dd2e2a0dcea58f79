"""Metrics of a decision between two classes by a threshold that validation chooses."""

from collections.abc import Sequence
from typing import Any

import torch
from lightkeeper.exact import UserError
from torch import Tensor
from torchmetrics.classification import BinaryROC
from torchmetrics.utilities import dim_zero_cat

from project.analysis.tables import wilson_interval
from project.model.metrics import macro_f1

_NEVER = 1 + 2**-20  # a threshold above all probabilities, of which float32 has 1, too
_ROUNDING = 1e-6  # of rates in float32


class Decision(BinaryROC):
    """The decision for the positive class, from a threshold on.

    That is the one that suits the images that were counted best, or one that was chosen before.

    Args:
        sensitivity: The least sensitivity; the threshold has the greatest specificity with it.
        specificity: The least specificity; the threshold has the greatest sensitivity with it.
        costs: Those of a missed positive and of a false alarm; the threshold has the least sum.
            One of the three is given, or none, for a specificity of 0.95.
        positive: The label of the positive class, 0 or 1.
    """

    chosen: float | None = None
    higher_is_better = True

    def __init__(
        self,
        sensitivity: float | None = None,
        specificity: float | None = None,
        costs: Sequence[float] | None = None,
        positive: int = 1,
    ) -> None:
        super().__init__()
        if [sensitivity, specificity, costs].count(None) < 2:
            raise UserError(
                "give one of --model.sensitivity, --model.specificity and --model.costs"
            )
        self.sensitivity = sensitivity
        self.specificity = 0.95 if specificity is None else specificity
        self.costs = costs
        self.positive = positive

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keeps the probabilities of the positive class."""
        super().update(preds[:, self.positive], (target == self.positive).long())

    def decide(self) -> tuple[float, Tensor]:
        """Returns the threshold, and images by true and predicted class, int64 (2, 2)."""
        shares, labels = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        threshold = self._best(labels) if self.chosen is None else self.chosen
        cells = (2 * labels + (shares >= threshold)).bincount(minlength=4).view(2, 2).cpu()
        return threshold, cells if self.positive else cells.flip(0, 1)

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


class OperatingPoint(Decision):
    """Sensitivity and specificity of the decision."""

    def compute(self) -> dict[str, Any]:  # type: ignore[override]  # torchmetrics returns three
        """Returns both rates, from 0 to 1, their 95% intervals, and both classes' thresholds."""
        threshold, confusion = self.decide()
        results: dict[str, Any] = {}
        for name, label in (("sensitivity", self.positive), ("specificity", 1 - self.positive)):
            hits, total = int(confusion[label, label]), int(confusion[label].sum())
            results[name] = hits / max(total, 1)
            results[f"{name}_interval"] = [*wilson_interval(hits, total)]
        thresholds = [max(1 - threshold, 0.0), threshold][:: 1 if self.positive else -1]
        return results | {"thresholds": thresholds}


class DecidedAccuracy(Decision):
    """Accuracy of the decision."""

    def compute(self) -> float:  # type: ignore[override]
        """Returns correct / all."""
        confusion = self.decide()[1]
        return int(confusion.trace()) / max(int(confusion.sum()), 1)


class DecidedF1(Decision):
    """F1 of the decision, as :class:`project.model.metrics.MacroF1` has it."""

    def compute(self) -> dict[str, Any]:  # type: ignore[override]
        """Returns F1, correct and all images, and the matrix, a row for each true class."""
        confusion = self.decide()[1]
        counts = {"correct": confusion.trace(), "total": confusion.sum()}
        return {"f1": macro_f1(confusion), **counts, "confusion_matrix": confusion}
