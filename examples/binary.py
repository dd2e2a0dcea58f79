"""A binary classifier for doctors and inspectors: AUROC, and a threshold for 95% sensitivity.

Or for a specificity, or the least cost. Validation chooses the threshold, which the checkpoint
keeps; the test, evaluate, predict, report and export use it. metrics.json has 95% intervals.
Add --model.sensitivity 0.95, --model.specificity 0.95 or --model.costs [10,1].

python -m project.fit --data images --model examples.binary.BinaryClassifier --model.positive malignant --monitor val/auroc
"""

from typing import Any

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat
from lightkeeper.exact import UserError
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAUROC

from examples.recipes.binary_metrics import (
    DecidedAccuracy,
    DecidedF1,
    Decision,
    OperatingPoint,
)
from project.model import ImageClassifier
from project.model.metrics import Accuracy


class BinaryClassifier(ImageClassifier):
    """Calls an image positive above a threshold that validation chooses.

    Args:
        positive: The class to find, such as ``malignant``.
        sensitivity: The least share of positive images that validation finds, such as 0.95.
        specificity: The least share of negative ones that it leaves; by default 0.95 if nothing
            else is given.
        costs: Those of a missed positive and of a false alarm, such as ``[10, 1]``.
        kwargs: See :class:`project.model.classifier.ImageClassifier`.
    """

    def __init__(
        self,
        class_names: list[str],
        positive: str = "",
        sensitivity: ClosedUnitInterval | None = None,
        specificity: ClosedUnitInterval | None = None,
        costs: tuple[NonNegativeFloat, NonNegativeFloat] | None = None,
        **kwargs: Any,
    ) -> None:
        if len(class_names) != 2 or positive not in class_names:
            raise UserError(f"--model.positive must be one of two classes, which are {class_names}")
        self.positive = class_names.index(positive)
        self.target = (sensitivity, specificity, costs, self.positive)
        super().__init__(class_names, **kwargs)
        self.train_metrics.add_metrics({"accuracy": Accuracy(2)})  # of the more probable class

    def configure_metrics(self) -> dict[str, Metric]:
        """Adds rates, and has all decide alike; of two classes, the AUROC of each is the same."""
        decided = {"accuracy": DecidedAccuracy, "f1": DecidedF1, "sensitivity": OperatingPoint}
        metrics = {name: cls(*self.target) for name, cls in decided.items()}
        return super().configure_metrics() | metrics | {"auroc": MulticlassAUROC(2)}

    @property
    def threshold(self) -> float | None:
        """Returns the probability from which an image is positive; None before any validation."""
        return (self.thresholds or {}).get(self.class_names[self.positive])

    def evaluation_logits(self, images: Tensor, views: Any = None, exact: bool = True) -> Tensor:
        """Has validation, too, average all views, as thresholds are of what the test will see."""
        return super().evaluation_logits(images, views or self.test_time_augmentation, exact)

    def on_validation_epoch_start(self) -> None:
        """Has all but the validations of training decide by the threshold of before."""
        super().on_validation_epoch_start()
        is_chosen = self.trainer.testing or self.trainer.state.fn != "fit"
        for metric in self._evaluation_metrics.values():
            if isinstance(metric, Decision):
                metric.chosen = self.threshold if is_chosen else None

    on_test_epoch_start = on_validation_epoch_start

    def predicted(self, probabilities: Tensor, split: Any = "test") -> Tensor:
        """Returns each image's class, int64 (N,): the positive one from the threshold on."""
        if self.threshold is None:
            return probabilities.argmax(1)
        return ((probabilities[:, self.positive] >= self.threshold) == self.positive).long()
