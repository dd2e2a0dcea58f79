"""Metrics that torchmetrics lacks, or computes at ten times the cost, for its collections.

``ImageClassifier.configure_metrics`` lists all metrics. Each ``update`` takes those of its
arguments that it names: ``preds``, the probabilities, float (N, classes); ``target``, the labels,
int64 (N,) or (N, classes); and by name ``logits``, ``losses``, float (N,), and ``predicted``, the
predicted labels. Counts are integers, which add up to the same in any order, so that metrics do not
depend on how a set is cut into batches and processes.
"""

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix

_LOSS_UNIT = 2.0**-20  # nats
_LARGEST_LOSS = 2.0**20  # nats; 2^23 images of it still fit 64 bits
# uniform in logit space, from 8e-7: about 3% wide for small probabilities
_EDGES = (torch.arange(1, 896) / 32 - 14).sigmoid()


class Counts(Metric):
    """A metric of integers in one state, ``counts``, so that torchmetrics gathers once."""

    higher_is_better = True
    full_state_update = False
    counts: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")


class MeanLoss(Counts):
    """The mean loss; NaN if any loss is not finite or above 2^20."""

    higher_is_better = False

    def __init__(self) -> None:
        super().__init__(3)

    def update(self, preds: Tensor, target: Tensor, losses: Tensor) -> None:
        """Adds up losses in integer units, images, and losses that are not finite."""
        finite = losses.abs() <= _LARGEST_LOSS  # NaN is not
        units = torch.where(finite, losses.float() / _LOSS_UNIT, 0).round().long()
        self.counts[0].add_(units.sum())
        self.counts[1].add_(len(losses))
        self.counts[2].add_((~finite).sum())

    def compute(self) -> float:
        """Returns the mean, accurate to the unit."""
        units, images, not_finite = self.counts.tolist()
        return float("nan") if not_finite else units * _LOSS_UNIT / max(images, 1)


class Accuracy(Counts):
    """The share of images classified correctly."""

    def __init__(self) -> None:
        super().__init__(2)

    def update(self, preds: Tensor, target: Tensor, predicted: Tensor) -> None:
        """Counts correct and all images."""
        self.counts[0].add_((predicted == target).sum())
        self.counts[1].add_(len(target))

    def compute(self) -> float:
        """Returns correct / all."""
        correct, total = self.counts.tolist()
        return float(correct / max(total, 1))


class TopKAccuracy(Counts):
    """Top-k accuracy; torchmetrics builds one-hot matrices for it."""

    def __init__(self, k: int) -> None:
        super().__init__(2)
        self.k = k

    def update(self, preds: Tensor, target: Tensor, logits: Tensor) -> None:
        """Ranks by logits, as small probabilities are rounded to 0."""
        self.counts[0].add_((logits.topk(self.k).indices == target[:, None]).sum())
        self.counts[1].add_(len(target))

    def compute(self) -> dict[str, float]:
        """Returns the accuracy and the number of correct images."""
        correct, total = self.counts.tolist()
        return {f"top{self.k}": correct / max(total, 1), f"top{self.k}_correct": correct}


class MacroF1(MulticlassConfusionMatrix):
    """Mean F1 over the classes that occur among labels or predictions, and the confusion matrix.

    In deterministic mode, torchmetrics' own update takes batch times classes squared of memory.
    """

    higher_is_better = True

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, validate_args=False)

    def update(  # type: ignore[override]
        self, preds: Tensor, target: Tensor, predicted: Tensor
    ) -> None:
        """Counts pairs of true and predicted class."""
        cells = target * self.num_classes + predicted
        self.confmat.view(-1).scatter_add_(0, cells, torch.ones_like(cells))

    def compute(self) -> dict[str, object]:  # type: ignore[override]
        """Returns F1, correct and all images, and the matrix, a row for each true class."""
        counts = {"correct": self.confmat.trace(), "total": self.confmat.sum()}
        return {"f1": macro_f1(self.confmat), **counts, "confusion_matrix": self.confmat}


class ExactMatch(Counts):
    """The share of images with all their classes predicted and no other.

    Unknown labels, -1, do not count.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def update(self, preds: Tensor, target: Tensor, predicted: Tensor) -> None:
        """Counts correct and all images."""
        self.counts[0].add_(((target == predicted) | (target < 0)).all(1).sum())
        self.counts[1].add_(len(target))

    def compute(self) -> dict[str, float]:
        """Returns the share, and the numbers of correct and of all images."""
        correct, total = self.counts.tolist()
        return {"accuracy": correct / max(total, 1), "correct": correct, "total": total}


class MultilabelF1(Counts):
    """Mean F1 over the classes that occur among labels or predictions.

    Torchmetrics counts an absent class as 0.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, 2, 2)

    def update(self, preds: Tensor, target: Tensor, predicted: Tensor) -> None:
        """Counts classes as true or not and predicted or not, unless unknown, -1."""
        cells = 2 * _rows(target) + predicted
        self.counts.view(-1).scatter_add_(0, cells.flatten(), (target >= 0).flatten().long())

    def compute(self) -> dict[str, object]:
        """Returns F1, and for each class [[neither, predicted], [true alone, both]]."""
        return {"f1": macro_f1(self.counts), "confusion_matrix": self.counts}


class BestThresholds(Counts):
    """The threshold of each class that maximises its F1; of ties, the nearest to 0.5.

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


def class_counts(confusion: Tensor) -> Tensor:
    """Counts each class's hits, true images and predicted images, (3, classes).

    The confusion matrix is (classes, classes), or (classes, 2, 2) if an image may have several.
    """
    if confusion.dim() == 2:
        return torch.stack([confusion.diagonal(), confusion.sum(1), confusion.sum(0)])
    return torch.stack([confusion[:, 1, 1], confusion[:, 1].sum(1), confusion[:, :, 1].sum(1)])


def macro_f1(confusion: Tensor) -> float:
    """Returns the mean F1 over the classes that occur among labels or predictions."""
    hits, true, predicted = class_counts(confusion.cpu()).double()
    return float((2 * hits / (true + predicted))[true + predicted > 0].mean())
