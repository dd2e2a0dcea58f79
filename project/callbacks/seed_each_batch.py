"""Makes the randomness of a step a function of where it is, not of what came before."""

import hashlib
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class SeedEachBatch(Callback):
    """Seeds torch's generators for each batch by (seed, epoch, batch, process), so that dropout goes on alike.

    Args:
        seed: The seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seeds the generators of all devices."""
        place = f"{self.seed} {trainer.current_epoch} {batch_idx} {trainer.global_rank}"
        torch.manual_seed(int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest()))
