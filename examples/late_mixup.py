"""MixUp that ends before the last epochs, which train on the images as they are.

python -m project.fit --data.batch_transforms+=torchvision.transforms.v2.MixUp --trainer.callbacks+=examples.late_mixup.EndMixUp
"""

from typing import Any

from lightkeeper.exact import UserError
from lightning.pytorch import Callback, Trainer


class EndMixUp(Callback):
    """Ends all ``--data.batch_transforms``; also where a run resumes within the last epochs."""

    def __init__(self, last_epochs: int = 1) -> None:
        self.last_epochs = last_epochs

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Refuses a training that ends by steps or time alone, of which no epoch is the last."""
        if trainer.max_epochs == -1:
            raise UserError("must be given with EndMixUp", "--trainer.max_epochs")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Removes them from the first of the last epochs on."""
        if trainer.current_epoch >= (trainer.max_epochs or 0) - self.last_epochs:
            trainer.datamodule.batch_transforms.clear()  # type: ignore[attr-defined]

    on_train_start = on_train_epoch_start  # within an epoch, no epoch starts
