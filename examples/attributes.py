"""Attributes, such as species and colour, by one network: a CSV with the column path and one for each; a cell may be empty.

python -m project.fit --data examples.attributes.AttributesCSV --model examples.attributes.AttributeClassifier --monitor val/f1
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from examples.multilabel_csv import LabelsCSV
from project.model import ImageClassifier, MultilabelMetrics


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

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Counts a batch."""
        values, best = labels[:, self.columns].max(1)
        super().update(logits[:, self.columns], best.where(values > 0, -1))


class AttributeMetrics(MultilabelMetrics):
    """Takes the best value of each attribute as predicted, whatever its probability."""

    sizes: list[int]

    def predicted(self, logits: Tensor) -> Tensor:
        """1 for each of these values, int64 (N, classes)."""
        return torch.cat(
            [F.one_hot(own.argmax(1), own.shape[1]) for own in torch.split(logits, self.sizes, 1)],
            1,
        )

    def best_thresholds(self) -> None:
        """There are none."""


class AttributeClassifier(ImageClassifier):
    """Adds up the cross entropies of the attributes that are known; the head has the outputs of all attributes."""

    metrics_class = AttributeMetrics

    @property
    def attributes(self) -> dict[str, dict[str, int]]:
        """Those that ``project.predict`` gives a value and a confidence each."""
        return values(self.class_names)

    def add_metrics(self, *metrics: AttributeMetrics) -> None:
        """Tells them which columns belong together."""
        self.sizes = [*map(len, self.attributes.values())]
        for one in metrics:
            one.sizes = self.sizes
        super().add_metrics(*metrics)

    def configure_metrics(self) -> dict[str, Metric]:
        """Adds the accuracy of each attribute."""
        return {
            name: AttributeAccuracy([*columns.values()])
            for name, columns in self.attributes.items()
        }

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
