"""A binary classifier for doctors and inspectors: AUROC, and sensitivity at a chosen specificity.

Validation chooses the threshold of the positive class's probability, and the test uses that;
metrics.json has all of them.

python -m project.fit --data images --model examples.binary.BinaryClassifier --model.positive malignant --monitor val/auroc
"""

from typing import Any

from lightkeeper.exact import UserError
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import BinarySensitivityAtSpecificity, MulticlassAUROC
from torchmetrics.functional.classification import binary_recall, binary_specificity
from torchmetrics.utilities import dim_zero_cat

from project.model import ImageClassifier
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


class BinaryClassifier(ImageClassifier):
    """Calls an image positive above a threshold that keeps a specificity on the validation set.

    Args:
        positive: The class to find, such as ``malignant``.
        kwargs: See :class:`project.model.classifier.ImageClassifier`.
    """

    def __init__(self, class_names: list[str], positive: str = "", **kwargs: Any) -> None:
        if len(class_names) != 2 or positive not in class_names:
            raise UserError(f"--model.positive must be one of two classes, which are {class_names}")
        self.positive = class_names.index(positive)
        super().__init__(class_names, **kwargs)

    def configure_metrics(self) -> dict[str, Metric]:
        """Adds both metrics; of two classes, torchmetrics' AUROC of each is the same."""
        metrics: dict[str, Any] = {"accuracy": DecidedAccuracy(2), "f1": DecidedF1(2)}
        metrics["sensitivity"] = OperatingPoint(min_specificity=0.95)
        for metric in metrics.values():
            metric.positive = self.positive
        return metrics | {"auroc": MulticlassAUROC(2)}

    @property
    def threshold(self) -> float | None:
        """Returns the probability from which an image is positive; None before any validation."""
        return (self.thresholds or {}).get(self.class_names[self.positive])

    def on_test_epoch_start(self) -> None:
        """Has the test take the threshold of the validation set."""
        super().on_test_epoch_start()
        for name in ("accuracy", "f1", "sensitivity"):
            self.test_metrics[name].chosen = self.threshold

    def predicted(self, probabilities: Tensor, split: Any = "test") -> Tensor:
        """Returns each image's class, int64 (N,): the positive one from the threshold on."""
        if split != "test" or self.threshold is None:
            return probabilities.argmax(1)
        return ((probabilities[:, self.positive] >= self.threshold) == self.positive).long()
