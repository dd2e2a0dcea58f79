"""A split's predictions and metrics, as plots and tables need them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightkeeper.exact import UserError
from lightkeeper.images import ImageDataModule, Predictions
from torch import Tensor

import project.data  # noqa: F401  # registers the data modules that checkpoints name
from project.model import ImageClassifier


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
    unknown = ~predictions.known[:, None]
    predictions.logits = predictions.logits.masked_fill(unknown, float("nan"))
    with torch.inference_mode():
        probabilities = model.probabilities(predictions.logits.to(model.device)).cpu()
    return Evaluation(
        **vars(predictions),
        probabilities=probabilities,
        metrics=model.results["test" if as_in_use else split],
    )


def correct_on_test(runs: Sequence[str]) -> dict[str, list[bool]]:
    """Finds out which test images the best checkpoint of each run classifies correctly.

    Raises:
        UserError: The runs have different test images.
    """
    correct, digests = dict[str, list[bool]](), set[str]()
    for run in runs:
        best = Path(run, "checkpoints", "best.ckpt")
        data = ImageDataModule.load_from_checkpoint(best)
        correct[run] = evaluate_split(
            ImageClassifier.load_from_checkpoint(best), data
        ).correct.tolist()
        digests.add(data.digests()[data.test_split])
    if len(digests) > 1:
        raise UserError(
            "the runs have different test images, so these cannot be compared one by one"
        )
    return correct
