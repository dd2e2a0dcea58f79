"""Predictions for each image of a split, collected while a trainer evaluates it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from ..exact._errors import UserError
from ..exact._quiet import quiet_libraries
from ._batch import BatchDataset
from ._data_module import ImageDataModule
from ._files import FileDataset
from ._scan import spelt

if TYPE_CHECKING:
    from ._module import ClassifierModule, Split

QUIET: Any = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
"""Options of a trainer that leaves nothing behind."""


class Prediction(NamedTuple):
    """The most probable class of an image, its probability, and those of all classes by name."""

    label: str
    probability: float
    probabilities: dict[str, float]


@dataclass
class Predictions:
    """Predictions for the images of a split, each once, in the order of the dataset, on the CPU.

    A true label that is unknown is -1. If images may have several classes, labels are int64 (N,
    classes): 1 for each class, -1 for unknown ones.
    """

    images: BatchDataset
    """The dataset: ``images.image(i)`` and ``images.name(i)``."""
    indices: Tensor
    """Positions in the dataset, int64 (N,)."""
    labels: Tensor
    """The true labels."""
    predicted: Tensor
    """The predicted labels."""
    confidence: Tensor
    """The probability of each predicted label; of several classes, of the least probable one."""
    label_probability: Tensor
    """The probability of each true label, as of the predicted one."""
    logits: Tensor
    """float32 (N, classes), or (N, 0) where they were not kept."""

    @property
    def known(self) -> Tensor:
        """True where an image has a label."""
        return (self.labels >= 0).view(len(self.labels), -1).any(1)

    @property
    def correct(self) -> Tensor:
        """True where an image is classified correctly, in all classes that are known of it."""
        agreed = (self.predicted == self.labels) | (self.labels < 0)
        return agreed.view(len(agreed), -1).all(1) & self.known

    def confident(self, correct: bool, count: int) -> list[int]:
        """Finds the images classified correctly, or wrongly, with the greatest confidence."""
        positions = (self.known & (self.correct == correct)).nonzero().flatten()
        order = self.confidence[positions].argsort(descending=True, stable=True)
        return positions[order][:count].tolist()

    def path(self, row: int) -> str:
        """Returns the path of an image's file, or its name if it is in none."""
        index = int(self.indices[row])
        if isinstance(self.images, FileDataset):
            return spelt(str(self.images.path(index)))
        return self.images.name(index)

    @staticmethod
    def of_split(
        model: "ClassifierModule",
        data: ImageDataModule,
        split: str = "test",
        as_in_use: bool = False,
    ) -> "Predictions":
        """Measures a split, into ``model.results``, and returns its predictions with logits.

        Args:
            model: The model, on any device, where it stays.
            data: The data module.
            split: ``val`` or ``test``.
            as_in_use: If true, validation is measured like a test, as a temperature for test images
                needs: with all views of test-time augmentation.
        """
        device = model.device
        model.keeps_logits = True
        if as_in_use:
            data.test_split = split
        with warnings.catch_warnings():
            quiet_libraries()
            trainer = Trainer(
                accelerator="gpu" if device.type == "cuda" else device.type,
                devices=1 if device.index is None else [device.index],
                plugins=LightningEnvironment(),  # whatever launcher has started this process
                **QUIET,
            )
            try:
                evaluate = trainer.validate if split == "val" and not as_in_use else trainer.test
                evaluate(model, datamodule=data, verbose=False)
            finally:
                data.test_split = "test"
                model.keeps_logits = False
                model.to(device).eval()
        if model.predictions is None:
            raise UserError(f"the evaluation steps of {type(model).__name__} measure no images")
        return model.predictions


def fields_of(
    model: "ClassifierModule", split: "Split", logits: Tensor, labels: Tensor, indices: Tensor
) -> list[Tensor]:
    """Returns the fields of a batch's :class:`Predictions`, from its indices on."""
    probabilities = model.probabilities(logits)
    predicted = model.predicted(probabilities, split)
    shares = [_probability_of(probabilities, label) for label in (predicted, labels)]
    # not an empty view, which would keep the logits in memory
    kept = logits if model.keeps_logits else logits.new_empty(len(logits), 0)
    return [indices, labels, predicted, *shares, kept]


def gathered(trainer: Trainer, batches: Sequence[Sequence[Tensor]]) -> Predictions | None:
    """Gathers the predictions of all processes for the first one; None for the others."""
    fields = [torch.cat(field) for field in zip(*batches, strict=True)]
    if trainer.world_size > 1:
        fields = [torch.cat(gather_all_tensors(field)) for field in fields]
    data: ImageDataModule | None = trainer.datamodule  # type: ignore[attr-defined]  # set by a loop
    if not fields or data is None or not trainer.is_global_zero:
        return None
    images = data.splits[data.test_split if trainer.testing else "val"]
    order = fields[0].argsort()
    return Predictions(images, *(field[order].cpu() for field in fields))


def _probability_of(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Returns the probability of labels, (N,); of several classes, of the least probable one."""
    if labels.dim() == 1:
        return probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels > 0, probabilities, 1 - probabilities).where(labels >= 0, 1).amin(1)
