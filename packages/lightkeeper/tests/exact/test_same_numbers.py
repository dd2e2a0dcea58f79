"""One process and several measure and train the same: metrics, files, batches, augmentation, losses, weights."""

import inspect
import os
import zlib
from copy import deepcopy
from functools import cache, partial
from typing import Any, cast

import pytest
import torch
from lightkeeper.exact._errors import UnreadableFileError
from lightkeeper.images import _check as check
from lightkeeper.images._decode import check_image
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAveragePrecision,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
)
from torchvision.transforms.v2 import RandAugment

from tests.image_files import write_folder
from tests.job import classifier, trainer
from tests.processes import forked, succeed, torchrun
from tests.stubs import Files, paths_of
from tests.toy import ToyClassifier, ToyData

WORLD_SIZES = [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3, 5))]
FIT_SIZE = 13


class MeasuringClassifier(ToyClassifier):
    """Measures how well it is calibrated and how well it ranks."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        classes = len(self.class_names)
        for metrics in (self.val_metrics, self.test_metrics):
            cast(MetricCollection, metrics).add_metrics(
                {
                    "calibration_error": MulticlassCalibrationError(classes, n_bins=5),
                    "average_precision": MulticlassAveragePrecision(classes, thresholds=None),
                    "confusion_matrix": MulticlassConfusionMatrix(classes),
                }
            )


def sizes(world_size):
    """Sets of one image a process, and sets that divide by their number and do not."""
    return sorted({world_size, world_size + 1, 7, 12, 23})


def data_of(size, world_size):
    """Several batches a process where the set is large enough."""
    return ToyData(80, 4 if 4 % world_size == 0 else world_size, val=size, test=size)


def evaluated(model, size, world_size):
    """The metrics of both splits, and the predictions of the test."""
    trainer(world_size).validate(model, datamodule=data_of(size, world_size), verbose=False)
    trainer(world_size).test(model, datamodule=data_of(size, world_size), verbose=False)
    if model.predictions is None:  # in all processes but the first
        return {}
    fields = {name: getattr(model.predictions, name).tolist() for name in ("indices", "predicted")}
    return deepcopy(model.results) | {"predictions": fields}


def fit_and_evaluate(world_size):
    """Validation in the middle of the second step, and the test after it; BatchNorm's statistics differ by process."""
    weights: dict[str, dict[str, torch.Tensor]] = {}  # of the first process, as they are measured

    def keep(trainer, model):
        weights["test" if trainer.testing else "val"] = deepcopy(model.state_dict())

    options = inspect.signature(DistributedDataParallel).parameters  # torch 2.11 lacks the option
    apart: dict[str, Any] = {"forward_sync_buffers": False}
    apart = apart if apart.keys() <= options.keys() else {}
    strategy: Any = DDPStrategy(**apart) if world_size > 1 else "auto"
    model = classifier(MeasuringClassifier, optimizer=partial(SGD, lr=0.01))
    data = ToyData(80, 4 * world_size, val=FIT_SIZE, test=FIT_SIZE)
    steps = {"limit_train_batches": 4, "accumulate_grad_batches": 2, "val_check_interval": 3}
    callbacks = [LambdaCallback(on_validation_end=keep, on_test_end=keep)]
    run = trainer(world_size, strategy=strategy, callbacks=callbacks, **steps)
    run.fit(model, datamodule=data)
    run.test(model, datamodule=data, verbose=False)
    return {split: (measured, weights[split]) for split, measured in model.results.items()}


def evaluate(out):
    """Evaluates sets of many sizes on all processes that were launched; the first writes down the metrics."""
    world_size, model = int(os.environ.get("WORLD_SIZE", "1")), classifier(MeasuringClassifier)
    measured = {
        "exact": {size: evaluated(model, size, world_size) for size in sizes(world_size)},
        "fit": fit_and_evaluate(world_size),
    }
    if os.environ.get("RANK", "0") == "0":
        torch.save(measured | {"world_size": world_size}, out / "measured.pt")


@pytest.fixture(scope="module", params=WORLD_SIZES, ids=lambda number: f"{number} processes")
def measured(request, tmp_path_factory):
    """The results of so many processes, in one launch."""
    out, world_size = tmp_path_factory.mktemp("evaluation"), request.param
    by_torchrun = torchrun(world_size, *forked(1, evaluate, out)[2:])  # which takes seconds longer
    command = by_torchrun if world_size == 3 else forked(world_size, evaluate, out)
    succeed(command, cwd=out, timeout=240)
    return torch.load(out / "measured.pt", weights_only=True)


@cache
def on_one_process(size):
    return evaluated(classifier(MeasuringClassifier), size, 1)


def require_equal(measured, expected):
    for name, value in expected.items():
        rounded = name in ("loss", "calibration_error", "average_precision")
        wanted = pytest.approx(value, rel=1e-5, abs=1e-6) if rounded else value
        assert measured[name] == wanted, name


@pytest.mark.filterwarnings(
    "ignore:Average precision score for one or more classes was `nan`", "ignore:No positive samples"
)
def test_sets_of_every_size_have_the_same_metrics_as_on_one_process(measured):
    assert list(measured["exact"]) == sizes(measured["world_size"])
    for size, results in measured["exact"].items():
        for split, expected in on_one_process(size).items():
            require_equal(results[split], expected)
        for split in ("val", "test"):
            assert sum(map(sum, results[split]["confusion_matrix"])) == size
        assert results["predictions"]["indices"] == [*range(size)]


def test_validation_within_a_step_of_fit_and_the_test_after_it_are_exact_too(measured):
    for split, (results, weights) in measured["fit"].items():
        model = classifier(MeasuringClassifier)
        statistics = "network.bn1.running_mean"
        assert not torch.equal(weights[statistics], model.state_dict()[statistics])  # it did train
        model.load_state_dict(weights)
        require_equal(results, evaluated(model, FIT_SIZE, 1)[split])


BATCH_SIZE, STEPS_PER_EPOCH = 8, 4
ACCUMULATED = (1, 2)


class LossLogger(DummyLogger):
    """Keeps the losses that are logged."""

    def __init__(self):
        super().__init__()
        self.losses: dict[int, float] = {}

    def log_metrics(self, *args, **kwargs):
        if "train/loss" in kwargs["metrics"]:
            self.losses[kwargs["step"]] = kwargs["metrics"]["train/loss"]


def trained(world_size, accumulate):
    """The batches of a run as the network sees them, its losses, and its first and last weights."""
    schedule = partial(CosineAnnealingLR, T_max=2)
    model = classifier(optimizer=partial(SGD, lr=0.001, momentum=0.9), lr_scheduler=schedule)
    augmentation: Any = {"train_transforms": [RandAugment()], "repeats": accumulate}
    size = BATCH_SIZE * STEPS_PER_EPOCH + 3  # what is left over belongs to no batch
    data = ToyData(size, BATCH_SIZE, val=5, test=5, **augmentation, seed=1)
    batches = []

    def note_batch(trainer, model, batch, batch_idx):
        for layer in model.modules():  # of half a batch, statistics and dropout are others
            if isinstance(layer, nn.BatchNorm2d | nn.Dropout):
                layer.eval()
        pixels = (zlib.crc32(image.contiguous().numpy().tobytes()) for image in batch.images)
        images = dict(zip(batch.indices.tolist(), pixels, strict=True))
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        batches.append({"step": trainer.global_step, "images": images, "lr": rate})

    before = deepcopy(model.state_dict())
    logger = LossLogger()
    trainer(
        world_size,
        max_epochs=2,
        log_every_n_steps=1,
        limit_val_batches=0,
        accumulate_grad_batches=accumulate,
        logger=logger,
        callbacks=[LambdaCallback(on_train_batch_start=note_batch)],
    ).fit(model, datamodule=data)
    weights = {"before": before, "after": model.state_dict()}
    return {"batches": batches, "losses": logger.losses, **weights}


def left(root, rank):
    """The files that a process trains on, where the first one alone cannot read some."""

    def look(file, bands=None):
        if rank == 0 and file.name.endswith("1.jpg"):
            raise UnreadableFileError(f"'{file}' cannot be read as an image")
        return check_image(file, bands)

    data: Any = Files(str(root), on_bad_image="skip", val_fraction=0.3, test_fraction=0.3)
    if rank == 1:
        data._check = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "check_image", look)
        trainer(2).fit(classifier(), datamodule=data)
    return {split: [*map(str, paths_of(dataset))] for split, dataset in data.splits.items()}


def train(out):
    """Trains all on two processes, each of which writes down what it saw."""
    rank = int(os.environ["RANK"])
    runs = [trained(2, accumulate) for accumulate in ACCUMULATED]
    torch.save({"runs": runs, "files": left(out / "images", rank)}, out / f"{rank}.pt")


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """The folder of two processes, and what each of them saw."""
    out = tmp_path_factory.mktemp("training")
    write_folder(out / "images", {"a": 20, "b": 20})
    succeed(forked(2, train, out), out)
    return out, *(torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(2))


def test_all_processes_leave_out_what_the_first_cannot_read(by_two):
    """If each decided for itself, their data sets would differ in length, and the run would wait for ever."""
    out, first, second = by_two
    assert first["files"] == second["files"]
    files = {file for part in first["files"].values() for file in part}
    assert files == {str(file) for file in out.rglob("*.jpg") if not file.name.endswith("1.jpg")}


def distance(one, other):
    return sum(float((one[name].double() - other[name].double()).norm()) for name in one)


def test_batches_hold_the_same_augmented_images_and_training_ends_in_the_same_weights(by_two):
    runs = (found["runs"] for found in by_two[1:])
    for accumulate, first, second in zip(ACCUMULATED, *runs, strict=True):
        alone = trained(1, accumulate)
        assert len(alone["batches"]) == 2 * STEPS_PER_EPOCH
        for batch, *parts in zip(*(run["batches"] for run in (alone, first, second)), strict=True):
            assert [len(part["images"]) for part in parts] == [BATCH_SIZE // 2] * 2
            assert parts[0]["images"] | parts[1]["images"] == batch["images"]
            # no rule scales the learning rate by the number of processes
            for name in ("step", "lr"):
                assert parts[0][name] == parts[1][name] == batch[name]
        assert len(alone["losses"]) == 2 * STEPS_PER_EPOCH // accumulate
        assert first["losses"] == pytest.approx(alone["losses"], rel=1e-3)
        assert distance(first["after"], second["after"]) == 0
        moved = distance(alone["before"], alone["after"])
        assert moved > 0.01
        # half batches round otherwise, by the CPU's instructions; a wrong mean differs by half
        assert distance(first["after"], alone["after"]) < 5e-2 * moved
