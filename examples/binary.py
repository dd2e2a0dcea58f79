"""A binary classifier for doctors and inspectors: AUROC, and sensitivity at a chosen specificity.

The second of two classes is the positive one. Validation chooses the threshold of its probability,
and the test uses that; metrics.json has all of them.

python -m project.fit --data images --model examples.binary.BinaryClassifier --monitor val/auroc
"""

from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import BinarySensitivityAtSpecificity, MulticlassAUROC
from torchmetrics.functional.classification import binary_recall, binary_specificity
from torchmetrics.utilities import dim_zero_cat

from project.model import ImageClassifier


class OperatingPoint(BinarySensitivityAtSpecificity):
    """The greatest sensitivity with a specificity, or both at a threshold that was chosen before."""

    threshold: float | None = None

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keeps the probabilities of the positive class."""
        super().update(preds[:, 1], target)

    def compute(self) -> dict[str, Any]:  # type: ignore[override]  # torchmetrics returns a pair
        """Returns both rates, from 0 to 1, and the thresholds of both classes."""
        threshold = self.threshold
        if threshold is None:  # torchmetrics returns a million if nothing has that specificity
            threshold = super().compute()[1].clamp(0, 1).item()
        positive = (dim_zero_cat(self.preds) >= threshold).long()
        labels = dim_zero_cat(self.target)
        return {
            "sensitivity": binary_recall(positive, labels),
            "specificity": binary_specificity(positive, labels),
            "thresholds": [1 - threshold, threshold],
        }


class BinaryClassifier(ImageClassifier):
    """Calls an image positive above a threshold that keeps a specificity on the validation set."""

    min_specificity = 0.95

    def configure_metrics(self) -> dict[str, Metric]:
        """Adds both metrics; of two classes, torchmetrics' AUROC of each is the same."""
        point = OperatingPoint(self.min_specificity)
        return super().configure_metrics() | {"auroc": MulticlassAUROC(2), "sensitivity": point}

    @property
    def threshold(self) -> float | None:
        """Returns the probability from which an image is positive; None before any validation."""
        return (self.thresholds or {}).get(self.class_names[1])

    def on_test_epoch_start(self) -> None:
        """Has the test take the threshold of the validation set."""
        self.test_metrics["sensitivity"].threshold = self.threshold

    def predicted(self, probabilities: Tensor, split: Any = "test") -> Tensor:
        """Returns 1 for a positive image, else 0, int64 (N,)."""
        if split != "test" or self.threshold is None:
            return probabilities.argmax(1)
        return (probabilities[:, 1] >= self.threshold).long()
