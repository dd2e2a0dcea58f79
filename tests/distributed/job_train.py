"""Trains small runs one after the other on all processes that were launched; each process writes what it saw."""

import os
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn
from torch.optim import SGD
from torchvision.transforms.v2 import RandAugment

from project.model.schedules import CosineWithWarmup
from tests.distributed.job import classifier, flowers
from tests.distributed.job import trainer as quiet_trainer
from tests.drawn import flowers_drawn_once

BATCH_SIZE, STEPS_PER_EPOCH = 8, 4
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "accumulated": {"trainer": {"accumulate_grad_batches": 2}},
    "whitened": {"model": {"arch": "airbench"}},
}


class Witness(Callback):
    """Writes down each batch as the network sees it."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.before = {name: value.clone() for name, value in pl_module.state_dict().items()}

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        for layer in pl_module.modules():  # BatchNorm's statistics of half a batch are not those of the whole
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        pixels = (zlib.crc32(image.contiguous().numpy().tobytes()) for image in batch.images)
        images = dict(zip(batch.indices.tolist(), pixels, strict=True))
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.batches.append({"step": trainer.global_step, "images": images, "lr": rate})


class LossLogger(DummyLogger):
    """Keeps the losses that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: dict[int, float] = {}

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        if "train/loss" in kwargs["metrics"]:
            self.losses[kwargs["step"]] = kwargs["metrics"]["train/loss"]


def run(world_size: int, model: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Trains; the batches and losses, and the first and last weights."""
    settings = {"optimizer": partial(SGD, lr=0.001, momentum=0.9), **(model or {})}
    trained = classifier(lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0), **settings)
    size = BATCH_SIZE * STEPS_PER_EPOCH + 3  # what is left over belongs to no batch
    augmentation = {"flip": True, "crop_padding": 4, "cutout": 8, "train_transforms": [RandAugment()]}
    data = flowers(size, 5, BATCH_SIZE, **augmentation, seed=1)
    witness, logger = Witness(), LossLogger()
    own = {"max_epochs": 2, "log_every_n_steps": 1, "logger": logger, "callbacks": [witness], "limit_val_batches": 0}
    quiet_trainer(world_size, **{**own, **(trainer or {})}).fit(trained, datamodule=data)
    weights = {name: value.clone() for name, value in trained.state_dict().items()}
    return {"batches": witness.batches, "losses": logger.losses, "before": witness.before, "after": weights}


@flowers_drawn_once()
def main(out: Path) -> None:
    """Runs the job."""
    found = {name: run(int(os.environ["WORLD_SIZE"]), **options) for name, options in RUNS.items()}
    torch.save(found, out / f"{os.environ['RANK']}.pt")
