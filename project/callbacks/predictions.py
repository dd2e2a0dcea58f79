"""What a network says of each image of a split."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from project.analysis.evaluated import Predictions
from project.engine.errors import UserError


class CollectPredictions(Callback):
    """Collects predictions while a model is tested or validated, on any number of processes; 28 bytes an image.

    Attributes:
        predictions: Those of all processes, once it is done.
    """

    def __init__(self) -> None:
        self.predictions: Predictions | None = None
        self._batches: list[Predictions] = []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps what the batch's logits say.

        Raises:
            UserError: The model's steps return no logits, or images may have several classes.
        """
        if not isinstance(outputs, Tensor):
            raise UserError(
                f"--output_predictions needs a {type(pl_module).__name__} whose test_step returns its logits"
            )
        if batch.labels.dim() != 1:
            raise UserError("--output_predictions needs images of one class each, but here they may have several")
        confidences, labels = pl_module.probabilities(outputs.float()), outputs.argmax(1)
        found = (batch.indices, batch.labels, labels, confidences.gather(1, labels[:, None])[:, 0])
        self._batches.append(Predictions(*(field.cpu() for field in found)))

    on_validation_batch_end = on_test_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Gathers those of all processes, which have as many images each."""
        mine = [torch.cat(field).to(pl_module.device) for field in zip(*self._batches, strict=True)]
        everyone = Predictions(*(trainer.strategy.all_gather(field).flatten().cpu() for field in mine))
        self.predictions, self._batches = _each_once(everyone), []

    on_validation_epoch_end = on_test_epoch_end


def _each_once(found: Predictions) -> Predictions:
    """Sorts by index and drops what another process counts, which its label of -1 tells."""
    order = (2 * found.indices + (found.targets < 0)).argsort()
    indices = found.indices[order]
    first = torch.ones_like(indices, dtype=torch.bool)
    first[1:] = indices[1:] != indices[:-1]
    return Predictions(*(field[order][first] for field in found))
