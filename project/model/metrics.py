"""Classification metrics as integer counts, so that they are exact however a set was cut into batches and processes."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, distributed
from torchmetrics import Metric

_LOSS_UNIT = 2.0**-20  # nats
_LARGEST_LOSS = 2.0**20  # nats; 2^23 images of it still fit 64 bits
_COVERAGES = torch.arange(50, 100)  # percent
# bins of probabilities from 8e-7: their edges lie 3% of a small probability apart, or of its distance from 1; near 0.5, 0.008
_LARGEST_LOGIT, _BINS_PER_LOGIT = 14, 32
_BINS = 2 * _LARGEST_LOGIT * _BINS_PER_LOGIT


def _edges(device: torch.device | None = None) -> Tensor:
    """Returns the inner edges of the bins, as logits; they are exact, and the middle one is 0."""
    return torch.arange(1, _BINS, device=device) / _BINS_PER_LOGIT - _LARGEST_LOGIT


class Metrics(NamedTuple):
    """Metrics of a whole set."""

    loss: float  # mean, by default cross entropy in nats; NaN where any image's was not finite, or above 2^20
    # int64 (classes, classes) on the CPU, with a row for each true class; where an image may have several classes,
    # (classes, 2, 2), with [[neither, predicted alone], [true alone, both]]
    confusion: Tensor
    top5_correct: (
        int | None
    )  # images with their class among the five best; None with five classes or fewer
    own: Mapping[str, float] = {}  # further metrics, by name
    exact: int | None = (
        None  # images with exactly their classes predicted; None where each image has one class
    )
    # by percent, the softmax that a class needs to join a prediction set that holds the true class so often
    coverage: Mapping[int, float] = {}
    images: int | None = None  # how many were measured, where they may have several classes
    thresholds: list[float] | None = (
        None  # the probability above which each class is predicted; None if that is 0.5
    )
    best_thresholds: list[float] | None = (
        None  # those by which each class's F1 would be greatest here
    )

    @property
    def total(self) -> int:
        """The number of images measured."""
        return int(self.confusion.sum()) if self.images is None else self.images

    @property
    def correct(self) -> int:
        """The number of images classified correctly, in all their classes."""
        return int(self.confusion.diagonal().sum()) if self.exact is None else self.exact

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy in [0, 1]; of several classes an image, the exact match ratio."""
        return self.correct / max(self.total, 1)

    @property
    def per_class(self) -> list[dict[str, float | int]]:
        """Precision, recall and F1 of each class in [0, 1], 0 where undefined, how many images it has, and its threshold."""
        rows: list[dict[str, float | int]] = [
            {
                "precision": h / max(p, 1),
                "recall": h / max(t, 1),
                "f1": 2 * h / max(t + p, 1),
                "total": t,
            }
            for h, t, p in self._hits_true_predicted()
        ]
        for row, threshold in zip(rows, self.thresholds or (), strict=False):
            row["threshold"] = threshold
        return rows

    @property
    def f1(self) -> float:
        """Mean F1 over the classes that occur among the labels or the predictions, in [0, 1]."""
        scores = [2 * h / (t + p) for h, t, p in self._hits_true_predicted() if t + p]
        return sum(scores) / max(len(scores), 1)

    def _hits_true_predicted(self) -> list[list[int]]:
        """Counts for each class the images that have it and are predicted to, that have it, and that are predicted to."""
        cells = self.confusion
        if cells.dim() == 3:
            return torch.stack(
                [cells[:, 1, 1], cells[:, 1].sum(1), cells[:, :, 1].sum(1)], dim=1
            ).tolist()
        return torch.stack([cells.diagonal(), cells.sum(1), cells.sum(0)], dim=1).tolist()

    def rates(self) -> dict[str, float]:
        """Returns the metrics worth a curve, by their short names."""
        top5 = {} if self.top5_correct is None else {"top5": self.top5_correct / max(self.total, 1)}
        return {"loss": self.loss, "accuracy": self.accuracy, **top5, "f1": self.f1, **self.own}

    def as_dict(self) -> dict[str, Any]:
        """Returns rates beside the counts they come from, as plain data."""
        counts = {"correct": self.correct, "total": self.total, "top5_correct": self.top5_correct}
        found = (
            self.rates()
            | counts
            | {"thresholds": self.thresholds, "confusion_matrix": self.confusion.tolist()}
        )
        return {name: value for name, value in found.items() if value is not None}


class CountingMetrics(Metric):
    """Counts everything a classifier is judged by in one pass, synchronised by torchmetrics.

    All states are integers (the loss too, in units of 2^-20 nats): integers add up alike in any order, so 1 process and
    7 report the same metrics to the last bit. A subclass's ``update`` takes a batch's logits, float (N, classes), labels
    and losses, float (N,), in nats, and does not wait for the device.
    """

    has_one_class: ClassVar[bool] = True
    """True if each image has one class; otherwise it may have any number of them."""

    thresholds: list[float] | None = None
    """The probability above which an image has a class, one for each class; None if that is 0.5, or the best class counts."""

    full_state_update = False
    loss_units: Tensor
    non_finite: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_integers("loss_units")
        self.add_integers("non_finite")

    def add_integers(self, name: str, *shape: int) -> None:
        """Adds a state of integers that processes add up."""
        self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def count_losses(self, losses: Tensor, counted: Tensor) -> None:
        """Adds up losses, float (N,), in nats, where ``counted``; one above 2^20 is not finite."""
        finite = losses.abs() <= _LARGEST_LOSS  # nor is NaN
        units = (
            torch.where(counted & finite, losses.float() / _LOSS_UNIT, 0).round().to(torch.int64)
        )
        self.loss_units += units.sum()
        self.non_finite += (counted & ~finite).sum()

    def compute(self) -> Metrics:
        """Returns the metrics of all images counted since the last reset, on all processes."""
        return self.results()

    @abstractmethod
    def results(self) -> Metrics:
        """Computes the metrics from the counts of this process, which may all be 0."""

    def predicted(self, logits: Tensor) -> Tensor:
        """Returns each image's label, here of the largest logit, int64 (N,), or 1 for each of its classes, int64 (N, classes)."""
        return logits.argmax(1)

    def mean_loss(self, total: int) -> float:
        """Returns the mean over so many images, in nats; NaN where any was not finite."""
        return (
            float("nan") if self.non_finite else int(self.loss_units) * _LOSS_UNIT / max(total, 1)
        )

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Adds up the counts of all processes at once, where torchmetrics gathers each of them from every process."""
        sums = self._sums()
        super().sync(*args, **kwargs | {"dist_sync_fn": lambda *_, **__: [next(sums)]})

    def _sums(self) -> Iterator[Tensor]:
        states = [cast(Tensor, state) for state in self.metric_state.values()]
        total = torch.cat([state.flatten() for state in states])
        distributed.all_reduce(
            total
        )  # Lightning's reduce belongs to a strategy, which a metric does not know
        for state, part in zip(
            states, torch.split(total, [state.numel() for state in states]), strict=True
        ):
            yield part.view_as(state)

    def counts(self) -> dict[str, Tensor]:
        """Returns the counts since the last reset, of all processes, each of which must call this."""
        with self.sync_context():
            return {
                name: cast(Tensor, state).cpu().clone() for name, state in self.metric_state.items()
            }

    def set_counts(self, counts: dict[str, Tensor]) -> None:
        """Restores the counts of all processes, in one of them; those that an older run counted otherwise begin at 0."""
        for name, state in self.metric_state.items():
            if name in counts and counts[name].shape == cast(Tensor, state).shape:
                setattr(self, name, counts[name].to(self.device))


class ClassificationMetrics(CountingMetrics):
    """Counts the predictions of images that have one class each: that of the largest logit.

    In evaluation mode, it also counts images by the probability of their true class, in bins of equal width of its logit.
    """

    confusion: Tensor
    top5_hits: Tensor
    true_shares: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.add_integers("confusion", num_classes, num_classes)
        self.add_integers("top5_hits")
        self.add_integers("true_shares", _BINS)

    def update(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Counts labels, int64 (N,), that are not negative; of soft ones, float (N, classes), the largest share counts."""
        labels = labels.argmax(1) if labels.dim() == 2 else labels
        counted, true = labels >= 0, labels.clamp(min=0)
        cells = true * self.num_classes + self.predicted(logits)
        self.confusion.view(-1).scatter_add_(0, cells, counted.long())
        if self.num_classes > 5:  # a label of -1 is never among the best
            self.top5_hits += (logits.topk(5).indices == labels[:, None]).sum()
        self.count_losses(losses, counted)
        if not self.training:
            share = logits.float().softmax(1).gather(1, true[:, None])[:, 0].nan_to_num()
            bins = torch.bucketize(share.logit(), _edges(share.device), right=True)
            self.true_shares.scatter_add_(0, bins, counted.long())

    def results(self) -> Metrics:
        """Computes the metrics from the counts of this process."""
        confusion = self.confusion.cpu()
        top5_correct = int(self.top5_hits) if self.num_classes > 5 else None
        loss = self.mean_loss(int(confusion.sum()))
        return Metrics(loss, confusion, top5_correct, coverage=self._coverage())

    def _coverage(self) -> dict[int, float]:
        """Finds the thresholds of prediction sets that hold the true class of at least that share of images like these.

        By split conformal prediction (Angelopoulos and Bates, 2021, https://arxiv.org/abs/2107.07511, section 1), with the
        probability of the class as score (Sadinle et al., 2019, https://arxiv.org/abs/1609.00451): smallest sets on average.
        """
        at_most = self.true_shares.cumsum(0).cpu()
        if not at_most[-1]:  # as in training
            return {}
        missed = (at_most[-1] + 1) * (100 - _COVERAGES) // 100  # images whose class may be left out
        lower_edges = torch.cat([torch.tensor([0.0]), _edges().double().sigmoid()])
        shares = lower_edges[torch.searchsorted(at_most, missed)]
        return dict(zip(_COVERAGES.tolist(), shares.tolist(), strict=True))


class MultilabelMetrics(CountingMetrics):
    """Counts the predictions of images that have any number of classes: those whose sigmoid is above a threshold.

    Training and validation count at 0.5. The test, and all use after training, take the threshold of each class by which
    its F1 was greatest on the validation set (``SCut`` in Yang, 2001; see Lipton et al., 2014, https://arxiv.org/abs/1402.1892).
    It is searched in evaluation mode, which counts images by the probability of each class, in bins of equal width of its logit.
    """

    has_one_class: ClassVar[bool] = False
    confusion: Tensor
    exact: Tensor
    images: Tensor
    histogram: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.add_integers("confusion", num_classes, 2, 2)
        self.add_integers("exact")
        self.add_integers("images")
        self.add_integers("histogram", 2 * num_classes * _BINS)

    def update(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Counts labels, (N, classes), from 0 to 1, which are rounded; negative ones are unknown and not counted."""
        known, true, predicted = labels >= 0, (labels > 0.5).long(), self.predicted(logits)
        counted, row = known.any(1), 2 * torch.arange(self.num_classes, device=labels.device) + true
        self.confusion.view(-1).scatter_add_(
            0, (2 * row + predicted).flatten(), known.flatten().long()
        )
        self.exact += (((true == predicted) | ~known).all(1) & counted).sum()
        self.images += counted.sum()
        self.count_losses(losses, counted)
        if not self.training:
            cells = row * _BINS + torch.bucketize(logits.float(), _edges(logits.device))
            self.histogram.scatter_add_(0, cells.flatten(), known.flatten().long())

    def predicted(self, logits: Tensor) -> Tensor:
        """Returns 1 for each class above its threshold, int64 (N, classes)."""
        if self.thresholds is None:
            return (logits > 0).long()
        edges = (
            torch.tensor(self.thresholds, dtype=torch.float64).logit().float()
        )  # exactly those that were chosen
        return (logits > edges.to(logits.device, non_blocking=True)).long()

    def best_thresholds(self) -> list[float] | None:
        """Finds the edge of a bin above which each class's F1 is greatest; of equal ones that nearest to 0.5."""
        counts = self.histogram.view(-1, 2, _BINS).cpu()
        above = counts.flip(2).cumsum(2).flip(2)[:, :, 1:].double()
        f1 = 2 * above[:, 1] / (above.sum(1) + counts[:, 1].sum(1, keepdim=True)).clamp(min=1)
        edges = _edges().double()
        order = edges.abs().argsort(stable=True)  # of equal values, argmax takes the first
        return edges[order[f1[:, order].argmax(1)]].sigmoid().tolist()

    def results(self) -> Metrics:
        """Computes the metrics from the counts of this process."""
        images = int(self.images)
        found = Metrics(
            self.mean_loss(images), self.confusion.cpu(), None, exact=int(self.exact), images=images
        )
        return found._replace(thresholds=self.thresholds, best_thresholds=self.best_thresholds())
