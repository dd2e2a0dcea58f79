"""Metrics that torchmetrics lacks, or computes at ten times the cost, for its collections.

``ImageClassifier.configure_metrics`` lists all metrics. Each ``update`` takes probabilities, float
(N, classes), and labels, int64 (N,) or (N, classes); that of ``loss`` takes losses. Counts are
integers, which add up to the same in any order, so that metrics do not depend on how a set is cut
into batches and processes.
"""

import copy
from collections.abc import Mapping
from operator import mul
from typing import Any

import torch
from lightkeeper.exact import UserError
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

_LARGEST_COUNT = 2.0**40
"""The largest count of a loss in its unit: sums over 2^23 images still fit 64 bits."""


Results = dict[str, Any]
"""Numbers, lists and text by metric."""


class SetMetrics(MetricCollection):
    """Copies of metrics for a set, of which ``loss`` takes losses, and all others take labels.

    torchmetrics' own gives all the same arguments, and merges metrics whose states agree after the
    first batch.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        super().__init__(
            {name: copy.deepcopy(metric) for name, metric in metrics.items()}, compute_groups=False
        )
        self._loader = 0
        self._earlier: Results = {}
        self._is_empty = True

    def update(self, preds: Tensor, target: Tensor, losses: Tensor) -> None:  # type: ignore[override]
        """Counts a batch; torchmetrics' classes accept no empty one."""
        self._is_empty = False
        for name, metric in self.items():
            if name == "loss":
                metric.update(losses)
            elif len(target):
                metric.update(preds, target)

    def start_loader(self, loader: int) -> None:
        """Computes and resets the metrics of the loader before, if an evaluation has several."""
        if loader != self._loader:
            self._earlier |= self._results()
            self._loader = loader

    def compute_and_reset(self) -> Results:
        """Returns each metric over all processes as plain data, and resets; {} if none was counted.

        Metrics of loaders after the first have Lightning's suffix of a loader.
        """
        results = self._earlier | self._results()
        self._loader = 0
        self._earlier = {}
        return results

    def _results(self) -> Results:
        values = Results()
        counted = {} if self._is_empty else dict(self.items())
        for name, metric in counted.items():
            value = metric.compute()
            parts = value if isinstance(value, dict) else {name: value}
            if twice := sorted(values.keys() & parts):
                raise UserError(f"two metrics are called '{twice[0]}'; the second is {name}'s")
            values |= parts
        self._is_empty = True
        with torch.inference_mode(False):  # else training could not change the new states in place
            self.reset()
        suffix = f"/dataloader_idx_{self._loader}" if self._loader else ""
        return {f"{name}{suffix}": _plain(value) for name, value in values.items()}

    def scalars(self, results: Results) -> dict[str, float]:
        """Returns what is logged: fractions, and counts only if a metric has their name."""
        return {
            name: float(value)
            for name, value in results.items()
            if isinstance(value, float) or (isinstance(value, int) and name in self)
        }


def _plain(value: object) -> object:
    """Returns a number or a list for a tensor."""
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.numel() == 1 else value.tolist()


class Counts(Metric):
    """A metric of integers in one state, ``counts``, so that torchmetrics gathers once."""

    higher_is_better = True
    full_state_update = False
    counts: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")


class MeanLoss(Counts):
    """The mean loss; NaN if a loss is not finite.

    Losses are counted in units of 2^-20, and large ones in coarser units, to a millionth of
    themselves: validation of a network that has hardly begun may show millions.
    """

    higher_is_better = False

    def __init__(self) -> None:
        units = 2.0 ** torch.arange(-20, 108, 20)  # the last reach the largest float32
        super().__init__(len(units) + 2)
        self.units = units  # no buffer, which float16 would round

    def update(self, losses: Tensor) -> None:
        """Adds each loss in the finest unit that it fits; counts images, and non-finite losses."""
        self.units = self.units.to(losses.device)  # once, as a copy waits for the device
        scaled = losses.float()[:, None] / self.units
        fits = scaled.abs() <= _LARGEST_COUNT  # NaN does not
        finest = fits & (fits.cumsum(1) == 1)  # the first that fits, as units grow
        self.counts[:-2].add_(torch.where(finest, scaled, 0).round().long().sum(0))
        self.counts[-2].add_(len(losses))
        self.counts[-1].add_((~fits[:, -1]).sum())

    def compute(self) -> float:
        """Returns the mean, accurate to the unit."""
        *counts, images, not_finite = self.counts.tolist()
        total = sum(map(mul, counts, self.units.tolist()))
        return float("nan") if not_finite else total / max(images, 1)


class Accuracy(MulticlassAccuracy):
    """The share of images classified correctly, where torchmetrics divides in float32."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, average="micro", validate_args=False)  # which would wait

    def compute(self) -> float:  # type: ignore[override]
        """Returns correct / all."""
        correct, _, _, wrong = (int(count.item()) for count in self._final_state())
        return correct / max(correct + wrong, 1)


class TopKAccuracy(Counts):
    """Top-k accuracy; torchmetrics builds one-hot matrices for it."""

    def __init__(self, k: int) -> None:
        super().__init__(2)
        self.k = k

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts images whose class is among the ``k`` most probable, and all."""
        self.counts[0].add_((preds.topk(self.k).indices == target[:, None]).sum())
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

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Counts pairs of true and predicted class."""
        cells = target * self.num_classes + preds.argmax(1)
        self.confmat.view(-1).scatter_add_(0, cells, torch.ones_like(cells))

    def compute(self) -> dict[str, object]:  # type: ignore[override]
        """Returns F1, correct and all images, and the matrix, a row for each true class."""
        counts = {"correct": self.confmat.trace(), "total": self.confmat.sum()}
        return {"f1": macro_f1(self.confmat), **counts, "confusion_matrix": self.confmat}


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
