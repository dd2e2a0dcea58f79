"""A multi-label classifier: an image may have any number of classes; sigmoid, and mean average precision.

python -m project.fit --data examples.multilabel.FlowerPairs --model examples.multilabel.MultilabelClassifier --monitor val/mAP
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MultilabelAveragePrecision

from examples.recipes.multilabel_metrics import BestThresholds, ExactMatch, MultilabelF1
from project.data import ArrayDataset, SyntheticFlowersDataModule
from project.model import ImageClassifier


class FlowerPairs(SyntheticFlowersDataModule):
    """Two drawn flowers side by side; a label, int64 (classes,), has a 1 for each species that is there."""

    def load(self) -> dict[str, ArrayDataset]:
        """Puts another flower beside each, at half the width."""
        return {split: self._pairs(flowers) for split, flowers in super().load().items()}

    def _pairs(self, flowers: ArrayDataset) -> ArrayDataset:
        other = torch.randperm(
            len(flowers), generator=torch.Generator().manual_seed(self.split_seed)
        )
        images = torch.cat([flowers.images[..., ::2], flowers.images[other][..., ::2]], dim=3)
        species = F.one_hot(flowers.labels, len(self.class_names))
        return ArrayDataset(images, species | species[other], "pair of flowers, number")


class MultilabelClassifier(ImageClassifier):
    """Decides on each class by itself."""

    has_one_class = False

    def configure_metrics(self) -> dict[str, Metric]:
        """Returns exact match, F1 with the thresholds that make it greatest, and mean average precision."""
        num_classes = len(self.class_names)
        return {
            "loss": super().configure_metrics()["loss"],
            "accuracy": ExactMatch(),
            "f1": MultilabelF1(num_classes),
            "thresholds": BestThresholds(num_classes),
            "mAP": MultilabelAveragePrecision(num_classes, ignore_index=-1),
        }

    def evaluation_logits(self, images: Tensor, views: Any = None, exact: bool = True) -> Tensor:
        """Has validation, too, average all views, as thresholds are of what the test will see."""
        return super().evaluation_logits(images, views or self.test_time_augmentation, exact)

    def on_test_epoch_start(self) -> None:
        """Has the test decide by the thresholds of the validation set."""
        super().on_test_epoch_start()
        for name in ("accuracy", "f1"):
            self.test_metrics[name].thresholds = [*(self.thresholds or {"": 0.5}).values()]

    def probabilities(self, logits: Tensor) -> Tensor:
        """That of each class, float (N, classes)."""
        return logits.sigmoid()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean binary cross entropy of each image, float (N,)."""
        known = (labels >= 0).float()
        cost = F.binary_cross_entropy_with_logits(logits, labels.float(), known, reduction="none")
        return cost.mean(1)

    evaluation_loss = loss
