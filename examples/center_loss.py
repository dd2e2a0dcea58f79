"""A loss on features, with weights of its own: center loss (Wen et al., 2016, https://doi.org/10.1007/978-3-319-46478-7_31).

python -m project.fit --model examples.center_loss.CenterLossClassifier --model.center_weight 0.01
"""

from typing import Any

import torch
from lightkeeper.exact import UserError
from torch import Tensor, nn

from project.model import ImageClassifier


class CenterLossClassifier(ImageClassifier):
    """Pulls the features of each class towards their centre, which is learned, too.

    Args:
        center_weight: The weight of half of the squared distance, beside the other loss.
        kwargs: See :class:`project.model.classifier.ImageClassifier`.
    """

    def __init__(self, center_weight: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.center_weight = center_weight
        self.centers = nn.Parameter(
            torch.zeros(self.network_head.weight.shape[:2])
        )  # (classes, features)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Measures the batch and returns its mean loss."""
        images, labels = batch[0], batch[1]
        if labels.dim() > 1:  # as of MixUp
            raise UserError("center loss needs one class an image", "--data.batch_transforms")
        logits, features = self.logits_and_features(images)
        distances = (features.float() - self.centers[labels]).square().sum(1)
        losses = self.loss(logits, labels) + self.center_weight / 2 * distances
        self.measure("train", logits, labels, losses)
        return losses.mean()
