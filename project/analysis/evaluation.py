"""A split's predictions, metrics and intervals, as plots and tables need them."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightkeeper.cli import read_metrics
from lightkeeper.exact import UserError
from lightkeeper.images import ImageDataModule, ImageFilesDataModule, Predictions
from scipy.special import expit, logit, ndtr, stdtrit
from torch import Tensor
from torch.nn.functional import one_hot
from torchmetrics.functional.classification import binary_auroc

import project.data  # noqa: F401  # registers the data modules that checkpoints name
from project.analysis.tables import Metrics
from project.model import ImageClassifier
from project.model.metrics import Results, macro_f1


@dataclass
class Evaluation(Predictions):
    """A model's predictions for all images of a split; NaN for those without a label."""

    probabilities: Tensor
    metrics: Results
    """Those that ``python -m project.evaluate`` reports, with any that the model adds."""


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
    model: ImageClassifier, predictions: Predictions, metrics: Results
) -> Evaluation:
    """Adds the probabilities of all classes to predictions that have logits.

    It sets the logits of images without a label to NaN, in the predictions, too.
    """
    unknown = ~predictions.known[:, None]
    predictions.logits = predictions.logits.masked_fill(unknown, float("nan"))
    with torch.inference_mode():
        probabilities = model.probabilities(predictions.logits.to(model.device)).cpu()
    return Evaluation(**vars(predictions), probabilities=probabilities, metrics=metrics)


def decisions(
    model: ImageClassifier, labels: Tensor, logits: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns probabilities of ``logits / temperature``, (M, classes), and labels, int64 (M,).

    M counts the images with a label. If images may have several classes, M counts their known
    labels instead, and the probabilities are (M, 2): each label is a decision of its own.
    """
    known = labels >= 0
    rows = known.view(len(labels), -1).any(1)
    scaled = logits[rows].to(model.device) / temperature
    with torch.inference_mode():
        probabilities = model.probabilities(scaled).cpu()
    if labels.dim() == 1:
        return probabilities, labels[rows]
    pairs = torch.stack([1 - probabilities, probabilities], dim=2)
    return pairs[known[rows]], labels[known]


def move_thresholds(
    model: ImageClassifier, logits: Tensor, before: float, temperature: float
) -> None:
    """Has a model's thresholds decide ``logits / temperature`` as they decide ``logits / before``.

    A threshold's log-odds are in proportion to the temperature's inverse, as those of a sigmoid and
    of a softmax of two classes. Where rounding would decide otherwise, it is half way between two
    images.

    Raises:
        UserError: A prediction would change, as of a model with other probabilities.
    """
    with torch.inference_mode():
        earlier, shares = (
            model.probabilities(logits.to(model.device) / divisor)
            for divisor in (before, temperature)
        )
    predicted = model.predicted(earlier)
    has_class = predicted > 0 if predicted.dim() > 1 else one_hot(predicted, shares.shape[1]) > 0
    thresholds = dict(model.thresholds or {})
    for place, (name, threshold) in enumerate(thresholds.items()):
        share = shares[:, place]
        has = has_class[:, place]
        low = max([0.0, *share[~has].tolist()])
        high = min([1.0, *share[has].tolist()])
        if 0 < threshold < 1:
            threshold = float(expit(logit(threshold) * before / temperature))
        elif has.any() == has.all():  # no image has the class, or all of them
            continue
        if low < high and not low < threshold < high:  # equal ones cannot be told apart
            threshold = (low + high) / 2
        thresholds[name] = threshold
    model.thresholds = thresholds
    if changed := int((model.predicted(shares) != predicted).sum()):
        raise UserError(
            f"--calibrate would change {changed} predictions that thresholds decide, by the"
            f" probabilities of {type(model).__name__}; the checkpoint stays as it is"
        )


def groups_of(predictions: Predictions, data: ImageDataModule) -> Tensor:
    """Numbers each image's group, such as a patient, int64 (N,); by default each is its own."""
    files = data.files() if isinstance(data, ImageFilesDataModule) else []
    group_of = {file.path: file.group for file in files}
    paths = map(predictions.path, range(len(predictions.labels)))
    names = [group_of.get(path, path) for path in paths]
    return torch.from_numpy(np.unique(names, return_inverse=True)[1])


def bootstrap_intervals(
    test: Evaluation, groups: Tensor, positive: int = 1
) -> dict[str, list[float]]:
    """Returns 95% intervals of accuracy, F1 and, of two classes, AUROC and both classes' recall.

    They are percentiles over 1,000 draws of whole groups, as images of one group are alike (Davison
    and Hinkley, 1997, sections 3.8 and 5.3), expanded for few groups (Hesterberg, 2015,
    https://doi.org/10.1080/00031305.2015.1089789). AUROC and recall are those of the draws that
    have both classes. An interval is empty if all draws agree, as of a perfect result: they say
    nothing of it.

    Args:
        test: Images of one class each.
        groups: The group of each image, int64 (N,), from 0.
        positive: The class whose recall is the sensitivity; the other's is the specificity.
    """
    known = test.known.nonzero().flatten()
    classes = test.probabilities.shape[1]
    count = int(groups.max()) + 1
    generator = torch.Generator().manual_seed(0)
    values: dict[str, list[float]] = defaultdict(list)
    for _ in range(1_000):
        drawn = torch.randint(count, (count,), generator=generator).bincount(minlength=count)
        rows = known.repeat_interleave(drawn[groups[known]])
        confusion = confusion_of(test, rows)
        rates = {"f1": macro_f1(confusion), "accuracy": float(confusion.trace() / confusion.sum())}
        if classes == 2 and confusion.sum(1).all():
            recall = confusion.diagonal() / confusion.sum(1)
            rates["sensitivity"], rates["specificity"] = recall[[positive, 1 - positive]].tolist()
            rates["auroc"] = float(binary_auroc(test.probabilities[rows, 1], test.labels[rows]))
        for name, value in rates.items():
            values[name].append(value)
    low = _expanded_level(count)
    return {
        name: np.quantile(row, [low, 1 - low]).tolist() if min(row) < max(row) else []
        for name, row in values.items()
    }


def confusion_of(test: Evaluation, rows: Tensor) -> Tensor:
    """Counts images, at these positions, by true class (rows) and predicted class (columns)."""
    classes = test.probabilities.shape[1]
    cells = test.labels[rows] * classes + test.predicted[rows]
    return cells.bincount(minlength=classes**2).view(classes, classes)


def _expanded_level(count: int) -> float:
    """Returns the share of draws below a 95% interval: 0.025, and less for few groups.

    Their percentiles would be too narrow: it is the normal distribution's at -t sqrt(n / (n - 1)),
    with Student's t.
    """
    freedom = max(1, count - 1)
    return float(ndtr(-math.sqrt(count / freedom) * stdtrit(freedom, 0.975)))


def confused_pairs(test: Evaluation) -> Counter[tuple[int, int]]:
    """Counts wrongly classified images by their true and predicted class."""
    return Counter(
        (true, predicted)
        for true, predicted in zip(test.labels.tolist(), test.predicted.tolist(), strict=True)
        if true not in (-1, predicted)
    )


def require_tested(model: ImageClassifier, run: Path, metrics: Metrics) -> None:
    """Refuses a best checkpoint that is not the one whose metrics a run has."""
    tested = model.about["epoch"] + 1, model.about["step"], model.about["metrics"].get("val")
    # as text, in which NaN is NaN
    if str(tested) != str(tuple(map(metrics.get, ("epoch", "step", "val")))):
        raise UserError(
            f"'{run / 'checkpoints' / 'best.ckpt'}' is not the checkpoint whose metrics are in"
            f" '{run / 'metrics.json'}': put the run's own back, or measure this one with"
            " project.evaluate"
        )


def correct_images(runs: Sequence[str], split: str) -> dict[str, list[bool]]:
    """Finds out which images of a split the best checkpoint of each run classifies correctly.

    Raises:
        UserError: The runs have different images.
    """
    correct: dict[str, list[bool]] = {}
    digests: set[str] = set()
    for run in runs:
        best = Path(run, "checkpoints", "best.ckpt")
        data = ImageDataModule.load_from_checkpoint(best)
        model = ImageClassifier.load_from_checkpoint(best)
        require_tested(model, Path(run), read_metrics(run))
        correct[run] = Predictions.of_split(model, data, split).correct.tolist()
        digests.add(data.digests()[split])
    if len(digests) > 1:
        raise UserError("the runs have different images, so these cannot be compared one by one")
    return correct
