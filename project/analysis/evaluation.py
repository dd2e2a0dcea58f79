"""A split's predictions, metrics and intervals, as plots and tables need them."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from lightkeeper.images import ImageDataModule, ImageFilesDataModule, Predictions
from torch import Tensor

import project.data  # noqa: F401  # registers the data modules that checkpoints name
from project.model import ImageClassifier
from project.model.metrics import macro_f1


@dataclass
class Evaluation(Predictions):
    """A model's predictions for all images of a split; NaN for those without a label."""

    probabilities: Tensor
    metrics: dict[str, Any]
    """Those that ``python -m project.evaluate`` reports, with any that the model adds."""

    @property
    def decisions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, probabilities and labels of labelled images; binary, by class, if multi-label."""
        if self.labels.dim() == 1:
            return self.logits[self.known], self.probabilities[self.known], self.labels[self.known]
        known = self.labels >= 0
        logits = torch.stack([torch.zeros_like(self.logits), self.logits], dim=2)
        probabilities = torch.stack([1 - self.probabilities, self.probabilities], dim=2)
        return logits[known], probabilities[known], self.labels[known]


def evaluate_split(
    model: ImageClassifier, data: ImageDataModule, split: str = "test", as_in_use: bool = False
) -> Evaluation:
    """Evaluates a split as ``python -m project.evaluate`` does, for plots and tables.

    Args:
        model: On any device, where it stays.
        data: The data module.
        split: ``val`` or ``test``.
        as_in_use: If true, validation uses all views of test-time augmentation, as a temperature
            for test images needs.
    """
    predictions = Predictions.of_split(model, data, split, as_in_use)
    return with_probabilities(model, predictions, model.results["test" if as_in_use else split])


def with_probabilities(
    model: ImageClassifier, predictions: Predictions, metrics: dict[str, Any]
) -> Evaluation:
    """Adds the probabilities of all classes to predictions that have logits."""
    unknown = ~predictions.known[:, None]
    predictions.logits = predictions.logits.masked_fill(unknown, float("nan"))
    with torch.inference_mode():
        probabilities = model.probabilities(predictions.logits.to(model.device)).cpu()
    return Evaluation(**vars(predictions), probabilities=probabilities, metrics=metrics)


def groups_of(predictions: Predictions, data: ImageDataModule) -> Tensor:
    """Numbers the groups of images, such as patients, int64 (N,); each its own if there are none."""
    files = data.files() if isinstance(data, ImageFilesDataModule) else []
    group_of = {file.path: file.group for file in files}
    paths = [predictions.path(row) for row in range(len(predictions.labels))]
    names = [group_of.get(path, path) for path in paths]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names])


def bootstrap_intervals(test: Evaluation, groups: Tensor) -> dict[str, list[float]]:
    """Returns 95% intervals of accuracy, macro F1 and, of two classes, AUROC.

    Percentiles over 1,000 draws of whole groups, as images of one are alike (Davison and Hinkley,
    1997, sections 3.8 and 5.3).

    Args:
        test: Images of one class each.
        groups: The group of each image, int64 (N,), from 0.
    """
    labels, predicted, groups = (x[test.known] for x in (test.labels, test.predicted, groups))
    classes = test.probabilities.shape[1]
    cells, count = labels * classes + predicted, int(groups.max()) + 1
    generator = torch.Generator().manual_seed(0)
    values: dict[str, list[float]] = defaultdict(list)
    for _ in range(1_000):
        drawn = torch.randint(count, (count,), generator=generator)
        weights = drawn.bincount(minlength=count)[groups].double()
        confusion = cells.bincount(weights, classes**2).view(classes, classes)
        values["accuracy"].append(float(confusion.trace() / confusion.sum()))
        values["f1"].append(macro_f1(confusion))
        if classes == 2:
            values["auroc"].append(auroc(test.probabilities[test.known][:, 1], labels, weights))
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    rows = {name: torch.tensor(row, dtype=torch.float64) for name, row in values.items()}
    return {name: row.nanquantile(ends).tolist() for name, row in rows.items()}


def auroc(shares: Tensor, labels: Tensor, weights: Tensor) -> float:
    """Returns how often a positive image has the greater share than a negative one (Hanley, 1982).

    Ties count half; NaN without both. torchmetrics takes no weights.

    Args:
        shares: float (N,).
        labels: 0 and 1, int64 (N,).
        weights: How often each image counts, float64 (N,).
    """
    places = shares.unique(return_inverse=True)[1]
    negative, positive = (places.bincount(weights * (labels == label)) for label in (0, 1))
    below = negative.cumsum(0) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))
