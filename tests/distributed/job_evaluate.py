"""Evaluates sets of many sizes on all processes that were launched; the first writes down the metrics.

Arguments: a folder for the metrics of each number of processes, and for trained weights.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import distributed
from torch.optim import SGD
from torch.utils.data import DistributedSampler

from project.data import ImageDataModule
from project.model import ImageClassifier
from tests.distributed.job import classifier, flowers, trainer
from tests.drawn import flowers_drawn_once

TRAIN_SIZE, FIT_SIZE = 60, 13


def sizes(world_size: int) -> list[int]:
    """Sets smaller than the number of processes, and sets that divide by it and do not."""
    return sorted({1, 2, max(1, world_size - 1), world_size, world_size + 1, 7, 12, 23})


def data_of(size: int, world_size: int) -> ImageDataModule:
    """A set of that size; several batches a process where it is large enough."""
    batch_size = 4 if 4 % world_size == 0 else world_size
    return flowers(TRAIN_SIZE, size, batch_size)


def metrics(model: ImageClassifier, split: str) -> dict[str, Any]:
    """All that was measured."""
    measured = model.results[split]
    return {**measured.as_dict(), "per_class": measured.per_class}


def evaluate(model: ImageClassifier, size: int, world_size: int) -> dict[str, Any]:
    """The metrics of ``validate`` and ``test``."""
    found = {}
    for split, method in {"val": "validate", "test": "test"}.items():
        getattr(trainer(world_size), method)(model, datamodule=data_of(size, world_size), verbose=False)
        found[split] = metrics(model, split)
    return found


def padded(model: ImageClassifier, size: int, world_size: int, rank: int) -> dict[str, int]:
    """What a hand-written script reports: sums over all processes of what the padding sampler gave each."""
    data = data_of(size, world_size)
    data.setup("test")
    test: Any = data.splits["test"]
    indices: Any = range(size)
    mine: list[int] = list(DistributedSampler(indices, world_size, rank, shuffle=False))
    with torch.no_grad():
        batch = test.__getitems__(mine)
        correct = (model.eval()(batch.images).argmax(1) == batch.labels).sum()
    counts = torch.stack([correct, torch.tensor(len(mine))])
    if world_size > 1:
        distributed.all_reduce(counts)
    return {"correct": int(counts[0]), "total": int(counts[1])}


def fit_and_evaluate(world_size: int, weights: Path) -> dict[str, Any]:
    """Validation inside ``fit`` after training steps, which leave every process BatchNorm statistics of its own."""
    model = classifier(optimizer=partial(SGD, lr=0.01))
    data = flowers(TRAIN_SIZE, FIT_SIZE, 4 * world_size)
    one = trainer(world_size, limit_train_batches=3)
    one.fit(model, datamodule=data)
    one.test(model, datamodule=data, verbose=False)
    if one.is_global_zero:
        torch.save(model.state_dict(), weights)
    return {split: metrics(model, split) for split in ("val", "test")}


class Measured(Callback):
    """Keeps the first process's weights as they are measured."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.weights = {name: value.clone() for name, value in pl_module.state_dict().items()}


def validate_within_a_step(world_size: int, weights: Path) -> dict[str, Any]:
    """Validation after two of the three batches of a step, for which gradients are not sent yet."""
    model, measured = classifier(), Measured()
    data = flowers(TRAIN_SIZE, FIT_SIZE, 4 * world_size)
    steps = {"limit_train_batches": 3, "accumulate_grad_batches": 3, "val_check_interval": 2}
    one = trainer(world_size, callbacks=[measured], **steps)
    one.fit(model, datamodule=data)
    if one.is_global_zero:
        torch.save(measured.weights, weights)
    return {"val": metrics(model, "val")}


def predicted(model: ImageClassifier, size: int, world_size: int) -> int:
    """How many images all processes together return predictions of."""
    found = trainer(world_size).predict(model, datamodule=data_of(size, world_size)) or []
    count = torch.tensor(sum(map(len, found)))
    if world_size > 1:
        distributed.all_reduce(count)
    return int(count)


@flowers_drawn_once()
def main(out: Path) -> None:
    """Runs the job."""
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    model = classifier()
    exact = {size: evaluate(model, size, world_size) for size in sizes(world_size)}
    found = {
        "exact": exact,
        "padded": {size: padded(model, size, world_size, rank) for size in sizes(world_size)},
        "predicted": {size: predicted(model, size, world_size) for size in (world_size, 7, 12)},
        "fit": fit_and_evaluate(world_size, out / f"{world_size}.pt"),
        "within a step": validate_within_a_step(world_size, out / "within.pt"),
    }
    if rank == 0:
        (out / f"{world_size}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
