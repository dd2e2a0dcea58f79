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
from ..loading.batch import BatchDataset
from ..loading.data_module import ImageDataModule

QUIET: Any = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
"""Options of a trainer that leaves nothing behind."""


@dataclass
class Predictions:
    """Predictions for the images of a split, each once, in the order of the dataset, on the CPU.

    The true label of a file that cannot be read is -1, and its prediction means nothing. If images
    may have several classes, labels are int64 (N, classes): 1 for each class, -1 for unknown ones.
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

    @staticmethod
    def of_split(
        model: Any, data: ImageDataModule, split: str = "test", as_in_use: bool = False
    ) -> "Predictions":
        """Measures a split, into ``model.results``, and returns its predictions with logits.

        Args:
            model: A :class:`.module.ClassifierModule` on any device, where it stays.
            data: The data module.
            split: ``val`` or ``test``.
            as_in_use: If true, validation is measured like a test, as a temperature for test images
                needs: with all views of test-time augmentation.
        """
        data.prepare_data()
        data.device_cache = False  # one pass gains nothing from it
        device = model.device
        if as_in_use:
            data.test_on(split)
        with warnings.catch_warnings():
            quiet_libraries()
            trainer = Trainer(
                accelerator="gpu" if device.type == "cuda" else device.type,
                devices=1 if device.index is None else [device.index],
                callbacks=[CollectPredictions(with_logits=True)],
                **QUIET,
            )
            try:
                evaluate = trainer.validate if split == "val" and not as_in_use else trainer.test
                evaluate(model, datamodule=data, verbose=False)
            finally:
                data.test_on("test")
                model.to(device).eval()
        predictions: Predictions | None = model.predictions
        if predictions is None or not model.results:
            raise UserError(f"the evaluation steps of {type(model).__name__} measure nothing")
        return predictions


class CollectPredictions(Callback):
    """Sets ``model.predictions`` in tests, and in validations outside ``fit``.

    Args:
        with_logits: If true, logits are kept, too.
    """

    def __init__(self, with_logits: bool = False) -> None:
        self.with_logits = with_logits
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
        """Keeps a batch's predictions, if it is a data module's and the step returns logits."""
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by a loop
        if data is None or not isinstance(outputs, Tensor) or not hasattr(batch, "indices"):
            return
        logits = outputs.float()
        probabilities = pl_module.probabilities(logits)
        predicted = pl_module.predicted(probabilities, "test" if trainer.testing else "val")
        shares = [_probability_of(probabilities, label) for label in (predicted, batch.labels)]
        kept = logits if self.with_logits else logits[:, :0]
        self._batches.append([batch.indices, batch.labels, predicted, *shares, kept])

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Gathers the predictions of all processes; only the first one keeps them."""
        fields = [torch.cat(field) for field in zip(*self._batches, strict=True)]
        self._batches = []
        if trainer.world_size > 1:
            fields = [torch.cat(gather_all_tensors(field)) for field in fields]
        pl_module.predictions = None
        if fields and trainer.is_global_zero:
            order = fields[0].argsort()
            data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by a loop
            images = data.splits[data.test_split if trainer.testing else "val"]
            pl_module.predictions = Predictions(images, *(field[order].cpu() for field in fields))

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        """Keeps a batch's predictions outside ``fit``."""
        if trainer.state.fn != "fit":
            self.on_test_batch_end(trainer, *args)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Gathers the predictions outside ``fit``."""
        if trainer.state.fn != "fit":
            self.on_test_epoch_end(trainer, pl_module)


def _probability_of(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Returns the probability of labels, (N,); of several classes, of the least probable one."""
    if labels.dim() == 1:
        return probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels > 0, probabilities, 1 - probabilities).where(labels >= 0, 1).amin(1)
