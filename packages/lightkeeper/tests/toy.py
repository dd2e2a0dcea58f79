"""A small classifier, data in memory and commands, which all tests share."""

import csv
import json
import os
import shlex
import signal
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightkeeper.cli import EvaluateCommand, FitCommand
from lightkeeper.cli._entry import one_line_errors
from lightkeeper.exact import is_logged
from lightkeeper.exact._last_checkpoint import StoppedError
from lightkeeper.images import (
    ArrayDataset,
    ImageDataModule,
    Preprocessing,
    classifier_callbacks,
    load_model,
)
from lightkeeper.images._predictions import QUIET
from lightkeeper.images._quiet import quiet_libraries
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

PREPROCESSING: Preprocessing = {"resize": 8, "crop": 8, "mean": [0.5] * 3, "std": [0.25] * 3}
RUN = Path("runs/run")
BEST = RUN / "checkpoints" / "best.ckpt"
LAST = RUN / "checkpoints" / "last.ckpt"
STEPS = 8
"""The steps of a run: two epochs of four batches of 16."""


def cases(names: str, *rows: Any, **options: Any) -> Any:
    """Runs a test for each row of a table, whose columns are named."""
    # addresses are never the same
    ids = {"ids": lambda value: str(value).partition(" at 0x")[0][:60]}
    return pytest.mark.parametrize(
        names.split() if " " in names else names, rows, **(ids | options)
    )


class SmallNetwork(nn.Sequential):
    """Has batch statistics and dropout, which make resuming hard, and is written in no time."""

    def __init__(self, num_classes: int) -> None:
        layers = {
            "conv1": nn.Conv2d(3, 8, 3, stride=2, bias=False),
            "bn1": nn.BatchNorm2d(8),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(8, 16, 3, stride=2, bias=False),
            "bn2": nn.BatchNorm2d(16),
            "relu2": nn.ReLU(),
            "pool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "dropout": nn.Dropout(0.2),
            "fc": nn.Linear(16, num_classes),
        }
        super().__init__(OrderedDict(layers))


class ToyClassifier(LightningModule):
    """A small network on the pixels: a plain LightningModule, as a user of the library writes it."""

    arch = "toy"
    arch_args = None
    has_one_class = True
    not_saved: ClassVar = ["optimizer", "lr_scheduler"]
    criterion = nn.CrossEntropyLoss(reduction="none")

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Preprocessing,
        optimizer: OptimizerCallable = lambda params: SGD(params, lr=0.1, momentum=0.9),
        lr_scheduler: LRSchedulerCallable | None = None,
        interval: str = "epoch",
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=self.not_saved, logger=False)
        self.class_names = class_names
        self.preprocessing = preprocessing
        self.network = self.build_network(len(class_names))
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.interval = interval
        accuracy = {"accuracy": MulticlassAccuracy(len(class_names), average="micro")}
        for split in ("train", "val", "test"):
            setattr(self, f"{split}_loss", MeanMetric(nan_strategy="disable"))
            setattr(self, f"{split}_metrics", MetricCollection({**accuracy}).clone())
        self.results: dict[str, dict[str, Any]] = {}
        self.predictions = None

    def build_network(self, num_classes: int) -> nn.Module:
        return SmallNetwork(num_classes)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def predicted(self, probabilities: Tensor, split: str = "test") -> Tensor:
        return probabilities.argmax(1)

    def forward(self, images: Tensor) -> Any:
        dtype = next(self.network.parameters()).dtype
        return self.network(images.to(dtype) / 255 - 0.5)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.criterion(logits, labels)

    def step(self, split: str, batch: Any) -> tuple[Tensor, Tensor]:
        logits, labels = self(batch[0]), batch[1]
        losses = self.loss(logits, labels)
        hard = labels.argmax(1) if labels.is_floating_point() else labels
        getattr(self, f"{split}_loss").update(losses.detach().float())
        getattr(self, f"{split}_metrics").update(self.probabilities(logits.detach().float()), hard)
        return losses.mean(), logits

    def training_step(self, batch, batch_idx: int) -> Tensor:
        return self.step("train", batch)[0]

    def validation_step(self, batch, batch_idx: int) -> Tensor:
        return self.step("val", batch)[1]

    def test_step(self, batch, batch_idx: int) -> Tensor:
        return self.step("test", batch)[1]

    def conclude(self, split: str) -> dict[str, Any]:
        loss, metrics = getattr(self, f"{split}_loss"), getattr(self, f"{split}_metrics")
        values = {"loss": loss.compute(), **metrics.compute()} if loss.update_called else {}
        with torch.inference_mode(False):
            loss.reset()
            metrics.reset()
        return {name: value.tolist() for name, value in values.items()}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if is_logged(self.trainer):
            results = self.conclude("train").items()
            values = {f"train/{name}": torch.tensor(value) for name, value in results}
            self.log_dict(values, prog_bar=True)

    def on_validation_epoch_start(self) -> None:
        self.conclude("test" if self.trainer.testing else "val")

    def on_validation_epoch_end(self) -> None:
        split = "test" if self.trainer.testing else "val"
        results = self.conclude(split)
        single = {name: value for name, value in results.items() if isinstance(value, float)}
        self.log_dict({f"{split}/{name}": value for name, value in single.items()})
        if results and not self.trainer.sanity_checking:
            self.results[split] = results

    on_test_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_validation_epoch_end

    def configure_callbacks(self) -> list[Callback]:
        return classifier_callbacks(self.trainer)

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        return load_model(cls, checkpoint_path, map_location, hparams_file, strict, **kwargs)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.network.parameters())
        if self.lr_scheduler is None:
            return optimizer
        schedule = self.lr_scheduler(optimizer)
        config = {"scheduler": schedule, "interval": self.interval, "strict": False}
        return [optimizer], [{**config, "monitor": getattr(schedule, "monitor", None)}]


def noise_splits(side: int = 8, **sizes: int) -> dict[str, ArrayDataset]:
    """Noise of so many images for each split, brighter for each of three classes in turns."""
    generator = torch.Generator().manual_seed(0)
    splits = {}
    for split, size in sizes.items():
        labels = torch.arange(size) % 3
        images = torch.randint(64, (size, 3, side, side), generator=generator)
        images += 64 * labels[:, None, None, None]
        splits[split] = ArrayDataset(images.to(torch.uint8), labels, split)
    return splits


class ToyData(ImageDataModule):
    """Three classes in memory."""

    class_names = ["dark", "grey", "light"]
    preprocessing = PREPROCESSING

    def __init__(
        self,
        size: int = 64,
        batch_size: int = 16,
        num_workers: int | None = 0,
        val: int = 24,
        test: int = 25,
        **options,
    ) -> None:
        super().__init__(batch_size, num_workers, **options)
        self.sizes = {"train": size, "val": val, "test": test}

    def load(self) -> dict[str, ArrayDataset]:
        return noise_splits(**self.sizes)


def toy(cls: type[ToyClassifier] = ToyClassifier, **options) -> ToyClassifier:
    """A classifier with the same first weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cls(ToyData.class_names, PREPROCESSING, **options)


def toy_trainer(**options) -> Trainer:
    """A plain trainer that leaves nothing behind."""
    return Trainer(**{"accelerator": "cpu", "devices": 1, "max_epochs": 2, **QUIET, **options})


class ToyFit(FitCommand):
    """Trains a toy classifier."""

    module = "tests.fit"
    description = "Trains a toy."
    build_model = ToyClassifier
    data_class = ImageDataModule
    classes = {"data": ToyData, "model": ToyClassifier}
    path_classes: ClassVar = {}
    defaults = {
        "trainer.accelerator": "cpu",
        "trainer.devices": 1,
        "trainer.max_epochs": 2,
        "trainer.log_every_n_steps": 1,
        "trainer.precision": "32-true",
        "trainer.num_sanity_val_steps": 0,
        "trainer.enable_progress_bar": False,
        "trainer.enable_model_summary": False,
    }
    examples = ()

    def show_results(self, metrics: dict[str, Any]) -> None:
        self.say(f"best checkpoint: {shlex.join([str(self.run.best), *self.data_flags()])}")


def load_toy(ckpt_path: str) -> ToyClassifier:
    return ToyClassifier.load_from_checkpoint(ckpt_path)


class ToyEvaluate(EvaluateCommand):
    """Measures a toy classifier."""

    module = "tests.evaluate"
    description = "Measures a toy."
    build_model = staticmethod(load_toy)
    data_class = ImageDataModule
    path_classes: ClassVar = {}
    defaults = {
        "trainer.accelerator": "cpu",
        "trainer.devices": 1,
        "trainer.logger": False,
        "trainer.enable_checkpointing": False,
        "trainer.enable_progress_bar": False,
        "trainer.enable_model_summary": False,
    }
    examples = ()


def evaluate(*args: str) -> ToyEvaluate:
    """Runs the command in this process."""
    quiet_libraries()
    command = ToyEvaluate([*args])
    command.evaluate()
    return command


def fit(*args: str, callbacks: Iterable[Callback] = ()) -> ToyFit:
    """Runs the command in this process, in ``runs/run``, with further callbacks."""

    class Fit(ToyFit):
        def _callbacks(self) -> list[Callback]:
            return [*super()._callbacks(), *callbacks]

    quiet_libraries()
    command = Fit(["--name=run", *args])
    command.fit()
    return command


class AtStep(Callback):
    """Sends this process a signal in a step, counted from 1, as the system might.

    0 is before the first step, one too many in the test.
    """

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step = step
        self.number = number

    def on_train_start(self, trainer, pl_module) -> None:
        if self.step == 0:
            os.kill(os.getpid(), self.number)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        if trainer.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)

    def on_test_start(self, trainer, pl_module) -> None:
        if trainer.global_step < self.step:
            os.kill(os.getpid(), self.number)


def stop_at(step: int, *args: str, number: int = signal.SIGTERM) -> StoppedError:
    """Runs a command, which a signal stops in a step."""
    with pytest.raises(StoppedError) as stopped:
        fit(*args, callbacks=[AtStep(step, number)])
    return stopped.value


def one_line(command, capsys) -> str:
    """The line of the error that a command ends with, behind what it says of its work."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended, one_line_errors():
        command()
    *notes, line = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("error: ")
    assert not [
        note for note in notes if note.startswith(("error", "Traceback")) or "Warning" in note
    ]
    return str(line)


def read_json(path: Path | str) -> Any:
    return json.loads(Path(path).read_text())


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def rows(path: Path | str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def events(run: Path) -> EventAccumulator:
    """TensorBoard's files of a run."""
    sizes = {"images": 0, "scalars": 0}
    return EventAccumulator(str(run), size_guidance=sizes, purge_orphaned_data=False).Reload()


def curve(run: Path, tag: str) -> list[tuple[int, float]]:
    """The points of a curve; files of one second are read in any order."""
    return sorted((event.step, event.value) for event in events(run).Scalars(tag))


STATE = (
    *("state_dict", "optimizer_states", "lr_schedulers", "metric_states", "global_step", "epoch"),
    *("current_model_state", "averaging_state", "MixedPrecision"),
)


def outcome(run: Path) -> dict[str, Any]:
    """Everything in which a continued run must not differ from an undisturbed one."""
    kept: dict[str, Any] = {"metrics.json": read_json(run / "metrics.json")}
    for path in run.glob("metrics.csv"):
        kept["metrics.csv"] = path.read_text()
    for name in ("best", "last"):
        checkpoint = load(run / "checkpoints" / f"{name}.ckpt")
        kept |= {f"{name}: {key}": checkpoint[key] for key in STATE if key in checkpoint}
        kept[f"{name}: about"] = checkpoint["about"]["metrics"].get("val")
    logged = events(run)
    for tag in logged.Tags()["scalars"]:
        is_speed = tag == "train/images_per_second"
        points = logged.Scalars(tag)
        kept[tag] = sorted((point.step, 0 if is_speed else point.value) for point in points)
    for tag in logged.Tags()["images"]:
        kept[tag] = sorted(event.step for event in logged.Images(tag))
    return kept


def leaves(value: object, where: str = "") -> dict[str, object]:
    """What a nested structure holds, by its place; tensors as their bits."""
    if isinstance(value, Tensor):
        return {where: (value.dtype, value.cpu().flatten().view(torch.uint8).numpy().tobytes())}
    if not isinstance(value, dict | list | tuple):
        return {where: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, part in items for k, v in leaves(part, f"{where}/{key}").items()}


def differences(first: object, second: object) -> list[str]:
    """The places at which two nested structures differ in any bit."""
    before, after = leaves(first), leaves(second)
    return [
        f"{place}: {str(before.get(place))[:80]} is not {str(after.get(place))[:80]}"
        for place in sorted(before.keys() | after.keys())
        if before.get(place, ...) != after.get(place, ...)
    ]


def require_same_end(run: Path, expected: dict[str, Any]) -> None:
    different = differences(expected, outcome(run))
    assert not different, "\n".join(different)
    assert [folder.name for folder in run.parent.iterdir()] == [run.name]
