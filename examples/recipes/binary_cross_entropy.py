"""Binary cross entropy, as timm trains with MixUp: each class is a decision of its own.

python -m project.fit --data FOLDER --model.loss examples.recipes.binary_cross_entropy.BinaryCrossEntropy
"""

import torch
from jsonargparse.typing import ClosedUnitInterval
from torch import Tensor, nn
from torch.nn import functional as F


class BinaryCrossEntropy(nn.Module):
    """Binary cross entropy of one class against all others, each image's loss as timm's.

    Each class is a decision of its own, so that an image that MixUp or CutMix made has both of its
    classes (Wightman et al., 2021, section 3.1, https://arxiv.org/abs/2110.00476).

    Args:
        label_smoothing: The share of each label that is spread over all classes, soft labels too.
        target_threshold: Labels above it become 1 and all others 0, after smoothing.
        sum_classes: Adds the classes up, where the mean would need a larger learning rate.
    """

    def __init__(
        self,
        label_smoothing: ClosedUnitInterval = 0.1,
        target_threshold: ClosedUnitInterval | None = None,
        sum_classes: bool = False,
    ) -> None:
        super().__init__()
        self.label_smoothing = float(label_smoothing)
        self.target_threshold = target_threshold
        self.sum_classes = sum_classes

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's loss, float (N,), for labels (N,) or soft ones (N, classes)."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        classes = logits.shape[1]
        targets = F.one_hot(labels, classes) if labels.dim() == 1 else labels
        smooth = targets.to(logits) * (1 - self.label_smoothing) + self.label_smoothing / classes
        if self.target_threshold is not None:
            smooth = smooth.gt(self.target_threshold).to(logits)
        losses = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none")
        return losses.sum(1) if self.sum_classes else losses.mean(1)
