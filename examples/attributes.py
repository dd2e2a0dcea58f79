"""Attributes, such as species and colour, by one network: a CSV with the column path and one for each; a cell may be empty.

python -m project.fit --data examples.attributes.AttributesCSV --model examples.attributes.AttributeClassifier --monitor val/f1
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from examples.multilabel_csv import LabelsCSV
from project.model import ImageClassifier
from project.model.metrics import ExactMatch, MeanLoss, MultilabelF1


class AttributesCSV(LabelsCSV):
    """Its classes are ``species=rose`` and the like, attribute by attribute."""

    def names(self, cells: dict[str, str]) -> list[str]:
        """The values of an image."""
        return [
            f"{attribute}={value}"
            for attribute, value in cells.items()
            if value and attribute != "split"
        ]

    def mark(self, name: str, names: list[str]) -> int:
        """-1 where the attribute is not known."""
        return int(name in names) if name.split("=")[0] in values(names) else -1


def values(class_names: list[str]) -> dict[str, dict[str, int]]:
    """The position of each attribute's values."""
    found: dict[str, dict[str, int]] = {}
    for position, name in enumerate(class_names):
        attribute, _, value = name.partition("=")
        found.setdefault(attribute, {})[value] = position
    return found


class AttributeAccuracy(MulticlassAccuracy):
    """The share of images of which an attribute is known, and right."""

    def __init__(self, columns: list[int]) -> None:
        super().__init__(len(columns), average="micro", ignore_index=-1)
        self.columns = columns

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts a batch."""
        known, best = target[:, self.columns].max(1)
        super().update(preds[:, self.columns], best.where(known > 0, -1))


class AttributeClassifier(ImageClassifier):
    """Adds up the cross entropies of the attributes that are known; the head has the outputs of all attributes."""

    has_one_class = False

    @property
    def attributes(self) -> dict[str, dict[str, int]]:
        """Those that ``project.predict`` gives a value and a confidence each."""
        return values(self.class_names)

    @property
    def sizes(self) -> list[int]:
        """The number of values of each attribute."""
        return [*map(len, self.attributes.values())]

    def configure_metrics(self) -> dict[str, Metric]:
        """Returns the accuracy of each attribute, and the share of images with all right."""
        metrics: dict[str, Metric] = {"loss": MeanLoss(), "accuracy": ExactMatch()}
        metrics["f1"] = MultilabelF1(len(self.class_names))
        return metrics | {
            name: AttributeAccuracy([*columns.values()])
            for name, columns in self.attributes.items()
        }

    def predicted(self, probabilities: Tensor, split: str = "test") -> Tensor:
        """Returns 1 for the best value of each attribute, whatever its probability, int64 (N, classes)."""
        parts = torch.split(probabilities, self.sizes, 1)
        return torch.cat([F.one_hot(part.argmax(1), part.shape[1]) for part in parts], 1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Those of each attribute's values, which add up to 1, float (N, classes)."""
        return torch.cat([own.softmax(1) for own in torch.split(logits, self.sizes, 1)], 1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum, float (N,)."""
        pairs = zip(
            *(torch.split(x, self.sizes, 1) for x in (logits, labels.clamp(min=0).float())),
            strict=True,
        )
        return torch.stack(
            [F.cross_entropy(own, true, reduction="none") for own, true in pairs]
        ).sum(0)

    evaluation_loss = loss
