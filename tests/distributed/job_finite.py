"""Trains until the loss of the second process alone is infinite, its gradients finite; each process writes what it saw.

Arguments: a folder for what each process saw.
"""

import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.optim import SGD

from project.callbacks import StopOnNonFinite
from project.engine.cli.command import one_line_errors
from project.model import ImageClassifier
from project.model.schedules import CosineWithWarmup
from tests.distributed.job import classifier, flowers, trainer

BAD_STEP, BAD_RANK = 3, 1


class OneBadLoss(ImageClassifier):
    """A loss that is infinite in one step of one process, with finite gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        bad = self.trainer.global_step + 1 == BAD_STEP and self.trainer.global_rank == BAD_RANK
        return super().training_step(batch, batch_idx) + (math.inf if bad else 0.0)


class Witness(Callback):
    """Keeps the parameters and the names of the images from the start of each step."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.step = trainer.global_step + 1
        self.before = parameters(pl_module)
        train = trainer.datamodule.splits["train"]  # type: ignore[attr-defined]  # set where it is passed to fit
        self.images = [train.name(index) for index in batch.indices.tolist()]


def parameters(model: ImageClassifier) -> dict[str, torch.Tensor]:
    """A copy of the weights."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def main(out: Path) -> None:
    """Runs the job."""
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    model = classifier(optimizer=partial(SGD, lr=0.01), lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0))
    model.__class__ = OneBadLoss
    witness = Witness()
    try:
        options = {"callbacks": [witness, StopOnNonFinite()], "limit_val_batches": 0}
        trainer(world_size, **options).fit(model, datamodule=flowers(40, 5, 8))
    except BaseException as error:
        seen = {"step": witness.step, "images": witness.images, "error": str(error)}
        torch.save({**seen, "before": witness.before, "after": parameters(model)}, out / f"rank{rank}.pt")
        raise


if __name__ == "__main__":
    with one_line_errors():
        main(Path(sys.argv[1]))
