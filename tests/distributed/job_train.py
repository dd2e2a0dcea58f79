"""Trains small runs one after the other on all processes that were launched; each process writes what it saw.

Arguments: a folder for what each process saw.
"""

import json
import os
import sys
import warnings
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.optim import SGD
from torchvision.transforms.v2 import RandAugment

from project.model import ImageClassifier
from project.model.schedules import CosineWithWarmup
from tests.distributed.job import classifier, flowers, trainer
from tests.drawn import flowers_drawn_once

BATCH_SIZE, STEPS_PER_EPOCH = 8, 4
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"trainer": {"accumulate_grad_batches": 2}},
    "whitened": {"model": {"arch": "airbench"}},
    "head": {"model": {"freeze": "backbone"}, "batchnorm_as_it_is": True},
    "linear_rule": {"model": {"base_batch_size": BATCH_SIZE // 2}, "trainer": {"max_steps": 1}},
}


class FrozenBatchNorm(Callback):
    """Keeps BatchNorm in evaluation: its statistics of half a batch are not those of the whole."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        for layer in pl_module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()


class Witness(Callback):
    """Writes down each batch as the network sees it, and how often gradients had travelled after it."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.travels = 0

    def hook(self, state: None, bucket: GradBucket) -> Future[Tensor]:
        """Counts the buckets that are sent."""
        self.travels += 1
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None is the default group

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.world_size > 1:  # not by way of the strategy: on a CPU, Lightning leaves hooks out
            trainer.strategy.model.register_comm_hook(None, self.hook)  # type: ignore[union-attr,operator]

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        images = {int(index): checksum(image) for index, image in zip(batch.indices, batch.images, strict=True)}
        (optimizer,) = trainer.optimizers
        rate = optimizer.param_groups[0]["lr"]
        self.batches.append({"step": trainer.global_step, "epoch": trainer.current_epoch, "images": images, "lr": rate})

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches[-1]["travels"] = self.travels


class LossLogger(DummyLogger):
    """Keeps the losses that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: dict[int, float] = {}

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        metrics, step = kwargs["metrics"], kwargs["step"]
        if "train/loss" in metrics:
            self.losses[step] = metrics["train/loss"]


def checksum(image: Tensor) -> int:
    """Tells images apart that differ in one bit."""
    return zlib.crc32(image.contiguous().numpy().tobytes())


def backbone(model: ImageClassifier) -> int:
    """A checksum of all weights and statistics but the head's."""
    state = model.network.state_dict()
    kept = (value.contiguous().numpy().tobytes() for name, value in state.items() if not name.startswith("fc."))
    return zlib.crc32(b"".join(kept))


def distance(one: Tensor, other: Tensor) -> float:
    """Euclidean."""
    return float((one.double() - other.double()).norm())


def run(world_size: int, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a run showed, and its last weights."""
    model = classifier(
        **{
            "optimizer": partial(SGD, lr=0.001, momentum=0.9),
            "lr_scheduler": partial(CosineWithWarmup, warmup_epochs=0),
            **options.get("model", {}),
        }
    )
    size = BATCH_SIZE * STEPS_PER_EPOCH + 3  # what is left over belongs to no batch
    augmentation = {"flip": True, "crop_padding": 4, "cutout": 8, "train_transforms": [RandAugment()]}
    data = flowers(size, 5, BATCH_SIZE, **augmentation, seed=1)
    witness, logger = Witness(), LossLogger()
    callbacks = [witness] if options.get("batchnorm_as_it_is") else [witness, FrozenBatchNorm()]
    own = {"max_epochs": 2, "log_every_n_steps": 1, "logger": logger, "callbacks": callbacks, "limit_val_batches": 0}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = backbone(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(world_size, **{**own, **options.get("trainer", {})}).fit(model, datamodule=data)
    after = model.state_dict()
    seen = {
        "batches": witness.batches,
        "losses": logger.losses,
        "warnings": [str(warning.message) for warning in caught],
        "backbone_moved": backbone(model) != first,
        "moved": {name: distance(after[name], before[name]) for name in after},
    }
    return seen, {name: value.clone() for name, value in after.items()}


@flowers_drawn_once()
def main(out: Path) -> None:
    """Runs the job."""
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    found, weights = {}, {}
    for name, options in RUNS.items():
        found[name], weights[name] = run(world_size, options)
    (out / f"rank{rank}.json").write_text(json.dumps(found))
    torch.save(weights, out / f"rank{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
