"""Shared by tests: tiny runs of the commands, and folders of small images."""

import colorsys
import csv
import json
import os
import resource
import signal
import subprocess
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightkeeper.cli._entry import one_line_errors
from lightkeeper.images._quiet import quiet_libraries
from lightning.pytorch import Callback, Trainer
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.optim.swa_utils import update_bn

from project import predict, report
from project.data import ImageDataModule, SyntheticFlowersDataModule
from project.evaluate import EvaluateCLI
from project.fit import FitCLI
from project.model import ImageClassifier

ROOT = Path(__file__).parents[1]

ONE_CPU = ["--trainer.accelerator=cpu", "--trainer.devices=1"]
FLOWERS = "--data=SyntheticFlowersDataModule"
TINY_DATA = [
    *("--data.train_size=64", "--data.val_size=24", "--data.test_size=26"),
    *("--data.image_size=32", "--data.batch_size=16"),
]
SMALL_FILES = ["--data.image_size=32", "--data.num_workers=0"]
TINY_TRAINER = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.accumulate_grad_batches=1",
]
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.num_sanity_val_steps=0"]
TINY = [FLOWERS, *TINY_DATA, *TINY_TRAINER, *QUIET, "--monitor=val/accuracy"]
SLIM = ["--model.arch=resnet9_slim"]
FAST = [
    *("--model.optimizer=SGD", "--model.optimizer.lr=0.1", "--model.optimizer.momentum=0.9"),
    *("--model.loss=CrossEntropy", "--model.lr_scheduler=CosineWithWarmup"),
    "--model.layer_decay=1",
]
"""For runs that must learn, whatever the defaults are."""
SMALL = [
    *("--trainer.precision=32-true", "--trainer.max_epochs=2", "--name=run"),
    "--trainer.callbacks=null",
]
"""Two epochs of four steps each."""
MULTILABEL = ["--model=examples.multilabel.MultilabelClassifier", "--monitor=val/mAP"]
PAIRS = ["--data=examples.multilabel.FlowerPairs", *TINY_DATA]
RUN = Path("runs/run")
BEST = RUN / "checkpoints" / "best.ckpt"


def cases(names: str, *rows: Any, **options: Any) -> Any:
    """Runs a test for each row of a table, whose columns are named."""
    # addresses are never the same
    ids = {"ids": lambda value: str(value).partition(" at 0x")[0][:60]}
    return pytest.mark.parametrize(
        names.split() if " " in names else names, rows, **(ids | options)
    )


@pytest.fixture
def limit_files() -> Iterator[Callable[[int], None]]:
    """Lets no file grow beyond so many bytes, as ``ulimit -f``."""
    size, limits = resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(size, (most, limits[1]))
    resource.setrlimit(size, limits)


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


@contextmanager
def as_in_a_terminal() -> Iterator[None]:
    """Silences what the commands silence."""
    with warnings.catch_warnings():
        quiet_libraries()
        yield


@contextmanager
def empty_figures() -> Iterator[None]:
    """Leaves the figures of runs empty: to draw them takes several times as long as a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("image_grid", "confusion_figure", "curves_figure", "class_figure"):
            patch.setattr(
                f"project.analysis.plots.{name}", lambda *_, **__: Figure(figsize=(0.1, 0.1))
            )
        yield


def fit(*args: str, drawn: bool = False) -> FitCLI:
    """Runs ``python -m project.fit`` in this process, with something in its figures where a test looks at them."""
    with as_in_a_terminal(), nullcontext() if drawn else empty_figures():
        cli = FitCLI([*args])
        cli.fit()
    return cli


def small(
    *args: str, data=(FLOWERS, *TINY_DATA, "--data.cutout=8"), callbacks=(), network=SmallNetwork
) -> FitCLI:
    """Runs ``python -m project.fit`` with a network that takes no time, by default on drawn flowers, with further callbacks."""
    own = FitCLI._callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "project.model.classifier.build_for_images",
            lambda arch, classes, args, preprocessing: (network(classes), args),
        )
        patch.setattr(FitCLI, "_callbacks", lambda cli: [*own(cli), *callbacks])
        return fit(*data, *TINY_TRAINER, *QUIET, *SMALL, *args)


class AtStep(Callback):
    """Asks this process to stop before a step, counted from 1, as the system might."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def stop_at(step: int, *args: str, **options: Any) -> None:
    """Runs ``small``, which a signal stops in a step: its code asks for another turn."""
    with pytest.raises(SystemExit) as stopped:
        small(*args, callbacks=[AtStep(step)], **options)
    assert stopped.value.code == 75


def one_line(command: Callable[[], object], capsys: Any) -> str:
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


def require_same_end(first: Path, second: Path) -> None:
    """Compares two runs' last checkpoints and metrics, bit for bit."""
    ends = [load(run / "checkpoints" / "last.ckpt") for run in (first, second)]
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(*(end[part] for end in ends), rtol=0, atol=0)
    assert ends[0]["lr_schedulers"] == ends[1]["lr_schedulers"]
    for name in ("metrics.json", "metrics.csv"):
        assert (first / name).read_text() == (second / name).read_text()


def evaluate(*args: str) -> EvaluateCLI:
    with as_in_a_terminal():
        cli = EvaluateCLI([*args, *QUIET[:1], *ONE_CPU])
        cli.evaluate()
        return cli


def call(command: Any, *args: str | Path) -> int:
    """Runs a command's module in this process; its exit code."""
    with as_in_a_terminal():
        return command.main(command.parser().parse_args([*map(str, args)])) or 0


def label(*args: str | Path) -> int:
    """Runs ``python -m project.predict`` in this process."""
    return call(predict, *ONE_CPU, "--num_workers=0", *args)


def report_of(run: Path, *args: str) -> Path:
    """Runs ``python -m project.report`` in this process; the page."""
    options = report.parser().parse_args([str(run), *args])
    with as_in_a_terminal():
        report.main(options)
    return Path(options.output or run / "report.html")


def opened(run: Path) -> tuple[ImageClassifier, ImageDataModule]:
    """The model of a run's best checkpoint, and its data."""
    best = run / "checkpoints" / "best.ckpt"
    data = ImageDataModule.load_from_checkpoint(best)
    data.setup("test")
    return ImageClassifier.load_from_checkpoint(best).eval(), data


def draw_image(hue: float, seed: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """A noisy image of one colour."""
    noise = np.random.default_rng(seed).normal(0, 12, (size[1], size[0], 3))
    colour = 255 * np.array(colorsys.hsv_to_rgb(hue, 0.8, 0.8))
    return Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8))


def make_folder(root: Path, classes: dict[str, int], size: tuple[int, int] = (40, 32)) -> Path:
    """A folder of image files for each class, with that many files each."""
    for position, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            image = draw_image(position / len(classes), number, size)
            image.save(root / name / f"{number}.jpg")
    return root


def quiet_trainer(**options: Any) -> Trainer:
    """A plain trainer on one CPU that leaves nothing behind."""
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{"accelerator": "cpu", "devices": 1, "max_epochs": 2, **quiet, **options})


def checkpoint_of(model: ImageClassifier, path: Path) -> Path:
    """Saves a model that was not trained."""
    model.trainer = quiet_trainer()
    model.trainer.strategy.connect(model)
    model.trainer.callbacks += model.configure_callbacks()  # type: ignore[attr-defined]
    model.trainer.save_checkpoint(path)
    return path


def flowers(train: int, evaluation: int, batch_size: int, **options: Any) -> Any:
    """Drawn flowers; validation and test have the same number."""
    sizes = {"train_size": train, "val_size": evaluation, "test_size": evaluation, "image_size": 32}
    return SyntheticFlowersDataModule(**sizes, batch_size=batch_size, **options)


def classifier(cls: type[ImageClassifier] = ImageClassifier, **options: Any) -> ImageClassifier:
    """Fixed weights, with BatchNorm statistics of the data so that predictions are of several classes."""
    torch.manual_seed(0)
    data = flowers(32, 1, 1)
    data.setup("fit")
    model = cls(data.class_names, data.preprocessing, **{"arch": "resnet9_slim", **options})
    update_bn([data.splits["train"].__getitems__(list(range(32))).images], model)
    return model


def environment(**extra: str) -> dict[str, str]:
    """This process's environment for one thread and the CPU, from where this project is imported."""
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **own, "PYTHONPATH": path, **extra}


def succeed(command: list[str], cwd: Path, timeout: float = 120, **extra: str) -> Any:
    """Runs a command to its end, which must be a good one; what it wrote."""
    options: Any = {"capture_output": True, "text": True, "check": False, "timeout": timeout}
    done = subprocess.run(command, cwd=cwd, env=environment(**extra), **options)
    assert done.returncode == 0, f"{done.stdout}\n--- stderr\n{done.stderr}"
    return done
