"""A classifier, data and a command of the engine's own terms: its tests need nothing else of the package."""

import csv
import json
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightkeeper.cli import FitCommand
from lightkeeper.cli._entry import one_line_errors
from lightkeeper.exact._last_checkpoint import StoppedError
from lightkeeper.exact._quiet import quiet_libraries
from lightkeeper.images import ArrayDataset, ClassifierModule, ImageDataModule, Preprocessing
from lightkeeper.images._predictions import QUIET
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import MeanMetric, Metric
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


class Loss(MeanMetric):
    """The mean loss, of the argument that the engine gives by name."""

    higher_is_better = False  # type: ignore[assignment]  # torchmetrics says None

    def update(self, preds: Tensor, target: Tensor, losses: Tensor) -> None:  # type: ignore[override]
        super().update(losses)


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


class ToyClassifier(ClassifierModule):
    """A small network on the pixels."""

    arch = "toy"
    arch_args = None
    criterion = nn.CrossEntropyLoss(reduction="none")
    compile_network = False

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
        self.add_metrics()

    def build_network(self, num_classes: int) -> nn.Module:
        return SmallNetwork(num_classes)

    def configure_metrics(self) -> dict[str, Metric]:
        accuracy = MulticlassAccuracy(len(self.class_names), average="micro")
        return {"loss": Loss(nan_strategy="disable"), "accuracy": accuracy}

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def forward(self, images: Tensor) -> Any:
        dtype = next(self.network.parameters()).dtype
        return self.network(images.to(dtype) / 255 - 0.5)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.criterion(logits, labels)

    def step(self, split, batch) -> Tensor:
        batch = self.as_batch(batch)
        logits = self(batch.images)
        losses = self.loss(logits, batch.labels)
        self.measure(split, logits, batch.labels, losses)
        return losses.mean()

    def training_step(self, batch, batch_idx: int) -> Tensor:
        return self.step("train", batch)

    def validation_step(self, batch, batch_idx: int) -> None:
        self.step("val", batch)

    def test_step(self, batch, batch_idx: int) -> None:
        self.step("test", batch)

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
        self, size: int = 64, batch_size: int = 16, num_workers: int | None = 0, **options
    ) -> None:
        super().__init__(batch_size, num_workers, **options)
        self.size = size

    def load(self) -> dict[str, ArrayDataset]:
        return noise_splits(train=self.size, val=24, test=25)


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

    module = __name__
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


def stop_at(
    step: int, *args: str, number: int = signal.SIGTERM, fit: Callable[..., Any] = fit, **options
) -> StoppedError:
    """Runs a command, which a signal stops in a step."""
    with pytest.raises(StoppedError) as stopped:
        fit(*args, callbacks=[AtStep(step, number)], **options)
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
    *("state_dict", "optimizer_states", "lr_schedulers", "counts", "global_step", "epoch"),
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
        return {where: (value.dtype, value.cpu().contiguous().numpy().tobytes())}
    if not isinstance(value, dict | list):
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
