"""Metrics of images with any number of classes, beside those of torchmetrics.

``project/model/metrics.py`` says what each ``update`` takes. A label of -1 is unknown. An image has
a class if its probability is above the class's threshold.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from project.model.metrics import Counts, macro_f1

# uniform in logit space, from 8e-7: about 3% wide for small probabilities
_EDGES = (torch.arange(1, 896) / 32 - 14).sigmoid()


class Thresholded(Counts):
    """Counts decisions by ``thresholds``: those of each class, or 0.5."""

    thresholds: Sequence[float] = (0.5,)

    def decide(self, preds: Tensor) -> Tensor:
        """Returns a 1 for each class of an image, int64 (N, classes)."""
        return (preds > torch.tensor(self.thresholds, device=preds.device)).long()


class ExactMatch(Thresholded):
    """The share of images with all their classes predicted and no other.

    Unknown labels, -1, do not count.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts correct and all images."""
        predicted = self.decide(preds)
        self.counts[0].add_(((target == predicted) | (target < 0)).all(1).sum())
        self.counts[1].add_(len(target))

    def compute(self) -> dict[str, float]:
        """Returns the share, and the numbers of correct and of all images."""
        correct, total = self.counts.tolist()
        return {"accuracy": correct / max(total, 1), "correct": correct, "total": total}


class MultilabelF1(Thresholded):
    """Mean F1 over the classes that occur among labels or predictions.

    Torchmetrics counts an absent class as 0.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, 2, 2)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts classes as true or not and predicted or not, unless unknown, -1."""
        cells = 2 * _rows(target) + self.decide(preds)
        self.counts.view(-1).scatter_add_(0, cells.flatten(), (target >= 0).flatten().long())

    def compute(self) -> dict[str, object]:
        """Returns F1, and for each class [[neither, predicted], [true alone, both]]."""
        return {"f1": macro_f1(self.counts), "confusion_matrix": self.counts}


class BestThresholds(Counts):
    """The threshold of each class that maximises its F1, among steps of about 3%.

    Of ties, it is the nearest to 0.5.

    ``SCut`` in Yang, 2001; see Lipton et al., 2014, https://arxiv.org/abs/1402.1892. Validation
    chooses them for the test and all use after training.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, 2, len(_EDGES) + 1)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts images by class, label and bin of probability."""
        cells = _rows(target) * self.counts.shape[2] + torch.bucketize(preds, _EDGES.to(preds))
        self.counts.view(-1).scatter_add_(0, cells.flatten(), (target >= 0).flatten().long())

    def compute(self) -> dict[str, Tensor]:
        """Returns the thresholds, float32 (classes,)."""
        counts = self.counts.cpu()
        above = counts.flip(2).cumsum(2).flip(2)[:, :, 1:].double()
        f1 = 2 * above[:, 1] / (above.sum(1) + counts[:, 1].sum(1, keepdim=True)).clamp(min=1)
        order = (_EDGES - 0.5).abs().argsort(stable=True)  # of equal values, argmax takes the first
        return {"thresholds": _EDGES[order[f1[:, order].argmax(1)]]}


def _rows(target: Tensor) -> Tensor:
    """Returns 2 x class + label, and 2 x class where it is unknown, int64 (N, classes)."""
    return 2 * torch.arange(target.shape[1], device=target.device) + target.clamp(min=0)
