"""Keeps the statistics of BatchNorm, as when fine-tuning with batches of a few images.

python -m project.fit --trainer.callbacks+=examples.freeze_batchnorm.FreezeBatchNorm
"""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn


class FreezeBatchNorm(Callback):
    """Normalises by the running statistics, which it keeps; weights and biases are trained."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Sets evaluation mode: before each batch, as a run may resume within an epoch."""
        for layer in pl_module.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.SyncBatchNorm):
                layer.eval()
