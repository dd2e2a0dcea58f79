"""Training is the same on one process and on two: batches, augmentation, losses, weights."""

import os
import zlib
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn
from torch.optim import SGD
from torchvision.transforms.v2 import RandAugment

from project.model.schedules import CosineWithWarmup
from tests.conftest import flowers_drawn_once
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import forked, succeed

BATCH_SIZE, STEPS_PER_EPOCH = 8, 4
RUNS = {"plain": (1, "resnet9_slim"), "accumulated, whitened": (2, "airbench")}
"""How many batches a step has, and the network."""


class Witness(Callback):
    """Writes down each batch as the network sees it."""

    def __init__(self):
        self.batches: list[dict[str, Any]] = []

    def on_train_start(self, trainer, pl_module):
        self.before = {name: value.clone() for name, value in pl_module.state_dict().items()}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        for layer in pl_module.modules():  # BatchNorm's statistics of half a batch are not those of the whole
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        pixels = (zlib.crc32(image.contiguous().numpy().tobytes()) for image in batch.images)
        images = dict(zip(batch.indices.tolist(), pixels, strict=True))
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.batches.append({"step": trainer.global_step, "images": images, "lr": rate})


class LossLogger(DummyLogger):
    """Keeps the losses that are logged."""

    def __init__(self):
        super().__init__()
        self.losses: dict[int, float] = {}

    def log_metrics(self, *args, **kwargs):
        if "train/loss" in kwargs["metrics"]:
            self.losses[kwargs["step"]] = kwargs["metrics"]["train/loss"]


def trained(world_size, accumulate, arch):
    """The batches and losses of a run, and its first and last weights."""
    optimizer, schedule = partial(SGD, lr=0.001, momentum=0.9), partial(CosineWithWarmup, warmup_epochs=0)
    network = classifier(arch=arch, optimizer=optimizer, lr_scheduler=schedule)
    size = BATCH_SIZE * STEPS_PER_EPOCH + 3  # what is left over belongs to no batch
    augmentation: dict[str, Any] = {"flip": True, "crop_padding": 4, "cutout": 8, "train_transforms": [RandAugment()]}
    data = flowers(size, 5, BATCH_SIZE, **augmentation, seed=1)
    witness, logger = Witness(), LossLogger()
    own = {"max_epochs": 2, "log_every_n_steps": 1, "logger": logger, "callbacks": [witness], "limit_val_batches": 0}
    trainer(world_size, accumulate_grad_batches=accumulate, **own).fit(network, datamodule=data)
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    return {"batches": witness.batches, "losses": logger.losses, "before": witness.before, "after": weights}


@flowers_drawn_once()
def train(out):
    """Trains all on the processes that were launched, each of which writes down what it saw."""
    found = {name: trained(int(os.environ["WORLD_SIZE"]), *options) for name, options in RUNS.items()}
    torch.save(found, out / f"{os.environ['RANK']}.pt")


def distance(one, other):
    return sum(float((one[name].double() - other[name].double()).norm()) for name in one)


def test_batches_hold_the_same_augmented_images_and_training_ends_in_the_same_weights(tmp_path):
    succeed(forked(2, train, tmp_path), tmp_path)
    first_of, second_of = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for run, (accumulate, arch) in RUNS.items():
        alone = trained(1, accumulate, arch)
        first, second = first_of[run], second_of[run]
        assert len(alone["batches"]) == 2 * STEPS_PER_EPOCH
        for batch, *parts in zip(*(one["batches"] for one in (alone, first, second)), strict=True):
            assert [len(part["images"]) for part in parts] == [BATCH_SIZE // 2] * 2
            assert parts[0]["images"] | parts[1]["images"] == batch["images"]
            for name in ("step", "lr"):  # no rule scales the learning rate by the number of processes
                assert parts[0][name] == parts[1][name] == batch[name]
        assert len(alone["losses"]) == 2 * STEPS_PER_EPOCH // accumulate
        assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert distance(first["after"], second["after"]) == 0
        moved = distance(alone["before"], alone["after"])
        assert moved > 0.01
        assert distance(first["after"], alone["after"]) < 1e-2 * moved
