"""Predictions for each image of a split, collected while a trainer evaluates it."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from ..cli.entry import quiet_libraries
from ..errors import UserError
from ..loading.data_module import ImageDataModule
from ..training.module import ClassifierModule

QUIET: Any = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
"""Options of a trainer that leaves nothing behind."""


@dataclass
class Predictions:
    """Predictions for the images of a split, each once, in the order of the dataset, on the CPU.

    The true label of a file that cannot be read is -1, and its prediction means nothing. If images may have several classes,
    labels are int64 (N, classes): 1 for each class, -1 for unknown ones.
    """

    indices: Tensor
    """Positions in the dataset, int64 (N,)."""
    labels: Tensor
    """The true labels."""
    predicted: Tensor
    """The predicted labels."""
    confidence: Tensor
    """The probability of each image's predicted class; of several, of the least probable decision."""
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


class CollectPredictions(Callback):
    """Collects the ``predictions`` of all processes while a model is tested or validated, on request with logits."""

    def __init__(self, with_logits: bool = False) -> None:
        self.with_logits = with_logits
        self.predictions: Predictions | None = None
        self._batches: list[list[Tensor]] = []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps a batch's predictions."""
        if not isinstance(outputs, Tensor):
            raise UserError(
                f"predictions of each image need a {type(pl_module).__name__} whose steps return logits"
            )
        logits = outputs.float()
        probabilities = pl_module.probabilities(logits)
        predicted = pl_module.predicted(probabilities, "test" if trainer.testing else "val")
        confidence = probability_of(probabilities, predicted)
        kept = logits if self.with_logits else logits[:, :0]
        self._batches.append([batch.indices, batch.labels, predicted, confidence, kept])

    on_validation_batch_end = on_test_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Gathers the predictions of all processes, and keeps them in the first."""
        fields = [torch.cat(field) for field in zip(*self._batches, strict=True)]
        self._batches = []
        if trainer.world_size > 1:
            fields = [torch.cat(gather_all_tensors(field)) for field in fields]
        if fields and trainer.is_global_zero:
            order = fields[0].argsort()
            self.predictions = Predictions(*(field[order].cpu() for field in fields))

    on_validation_epoch_end = on_test_epoch_end


def probability_of(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Returns the probability of each image's label, float (N,); of several classes, that of the least probable decision."""
    if labels.dim() == 1:
        return probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels > 0, probabilities, 1 - probabilities).where(labels >= 0, 1).amin(1)


def predict_split(
    model: ClassifierModule, data: ImageDataModule, split: str = "test", as_in_use: bool = False
) -> Predictions:
    """Measures a split with a quiet trainer, into ``model.results``, and returns its predictions with logits.

    Args:
        model: On any device, where it stays.
        data: The data module.
        split: ``val`` or ``test``.
        as_in_use: If true, validation is measured like a test, as a temperature for test images needs: with all views of
            test-time augmentation.
    """
    data.prepare_data()
    data.device_cache = False  # one pass gains nothing from it
    device = model.device
    collect = CollectPredictions(with_logits=True)
    if as_in_use:
        data.test_on(split)
    with warnings.catch_warnings():
        quiet_libraries()
        trainer = Trainer(
            accelerator="gpu" if device.type == "cuda" else device.type,
            devices=1 if device.index is None else [device.index],
            callbacks=[collect],
            **QUIET,
        )
        try:
            evaluate = trainer.validate if split == "val" and not as_in_use else trainer.test
            evaluate(model, datamodule=data, verbose=False)
        finally:
            data.test_on("test")
            model.to(device).eval()
    if collect.predictions is None or not model.results:
        raise UserError(f"the evaluation steps of {type(model).__name__} measure nothing")
    return collect.predictions
