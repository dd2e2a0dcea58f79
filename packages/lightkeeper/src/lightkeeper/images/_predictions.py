"""Predictions: of image files, and of each image of a split while a trainer evaluates it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from ..exact._errors import UserError
from ._batch import BatchDataset
from ._class_names import require_class_names
from ._data_module import ImageDataModule
from ._files import FileDataset, prepare
from ._quiet import quiet_libraries
from ._scan import to_nfc

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
            return to_nfc(str(self.images.path(index)))
        return self.images.name(index)

    @staticmethod
    def of_split(
        model: Any,
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
        if as_in_use:
            data.test_split = split
        with warnings.catch_warnings():
            quiet_libraries()
            trainer = Trainer(
                accelerator="gpu" if device.type == "cuda" else device.type,
                devices=1 if device.index is None else [device.index],
                plugins=LightningEnvironment(),  # whatever launcher has started this process
                callbacks=CollectPredictions(with_logits=True),
                **QUIET,
            )
            try:
                evaluate = trainer.validate if split == "val" and not as_in_use else trainer.test
                evaluate(model, datamodule=data, verbose=False)
            finally:
                data.test_split = "test"
                model.to(device).eval()
        if model.predictions is None:
            raise UserError(f"the evaluation steps of {type(model).__name__} return no logits")
        predictions: Predictions = model.predictions
        return predictions


def predict_files(
    model: Any, paths: Sequence[str | Path], batch_size: int = 64
) -> list[Prediction]:
    """Labels image files, prepared as the model's preprocessing says, in their order.

    Args:
        model: The model.
        paths: The files.
        batch_size: The number of images that the model sees at a time; results depend on it by
            rounding.

    Raises:
        UnreadableFileError: A file is no image.
        UserError: Two classes have one name, by which a prediction would have one of them alone.
    """
    require_class_names(model.class_names)
    model.eval()
    predictions: list[Prediction] = []
    for start in range(0, len(paths), batch_size):
        files = paths[start : start + batch_size]
        images = torch.stack([prepare(path, model.preprocessing) for path in files])
        with torch.inference_mode():
            probabilities = model.predict_step(images.to(model.device), 0).float()
        best = model.predicted(probabilities) if model.has_one_class else probabilities.argmax(1)
        for position, row in zip(best.tolist(), probabilities.tolist(), strict=True):
            by_name = dict(zip(model.class_names, row, strict=True))
            predictions.append(Prediction(model.class_names[position], row[position], by_name))
    return predictions


class CollectPredictions(Callback):
    """Collects the predictions of an evaluation outside ``fit``, and of the test after it.

    The steps return logits, float (N, classes), of batches with indices. In the first process the
    model's ``predictions`` are those of the newest evaluation; None where there were several
    loaders, or other steps.

    Args:
        with_logits: If true, predictions have logits, too.
    """

    def __init__(self, with_logits: bool = False) -> None:
        self.with_logits = with_logits
        self._batches: list[list[Tensor]] = []

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Forgets an earlier evaluation."""
        self._batches = []

    on_validation_start = on_test_start

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: object,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps a batch's indices, labels and predictions."""
        loaders = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
        is_ours = hasattr(batch, "indices") and len(loaders) == 1
        if trainer.state.fn == "fit" or not (is_ours and isinstance(outputs, Tensor)):
            return
        logits = outputs.float()
        probabilities = pl_module.probabilities(logits)
        predicted = pl_module.predicted(probabilities, "test" if trainer.testing else "val")
        shares = [_probability_of(probabilities, label) for label in (predicted, batch.labels)]
        # not an empty view, which would keep the logits in memory
        kept = logits if self.with_logits else logits.new_empty(len(logits), 0)
        self._batches.append([batch.indices, batch.labels, predicted, *shares, kept])

    on_validation_batch_end = on_test_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Gathers the predictions of all processes for the first one."""
        if trainer.state.fn == "fit":
            return
        pl_module.predictions = None
        fields = [torch.cat(field) for field in zip(*self._batches, strict=True)]
        self._batches = []
        if trainer.world_size > 1:
            fields = [torch.cat(gather_all_tensors(field)) for field in fields]
        data: ImageDataModule | None = trainer.datamodule  # type: ignore[attr-defined]  # by a loop
        if fields and data is not None and trainer.is_global_zero:
            images = data.splits[data.test_split if trainer.testing else "val"]
            order = fields[0].argsort()
            pl_module.predictions = Predictions(images, *(field[order].cpu() for field in fields))

    on_validation_epoch_end = on_test_epoch_end


def _probability_of(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Returns the probability of labels, (N,); of several classes, of the least probable one."""
    if labels.dim() == 1:
        return probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels > 0, probabilities, 1 - probabilities).where(labels >= 0, 1).amin(1)
