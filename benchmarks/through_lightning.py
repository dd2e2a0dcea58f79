"""The same work through Lightning, with everything that ``project.fit`` adds to it."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from tempfile import TemporaryDirectory

import torch
from lightning.pytorch.callbacks import LambdaCallback

from benchmarks.plain import SEED
from benchmarks.plan import Work
from benchmarks.timing import StepClock
from project.fit import FitCLI
from project.model import ImageClassifier

_DATA = "benchmarks.random_images.RandomImagesDataModule"


def train(work: Work, device: torch.device) -> tuple[StepClock, ImageClassifier]:
    """Takes the steps as ``project.fit`` does, validation aside.

    Returns:
        The clock, and the trained model.
    """
    with _command(work, device) as (cli, clock):
        cli.trainer.limit_val_batches = 0
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    return clock, cli.model


def evaluate(work: Work, device: torch.device) -> StepClock:
    """Evaluates as ``project.fit`` does."""
    with _command(work, device) as (cli, clock):
        cli.trainer.validate(cli.model, datamodule=cli.datamodule, verbose=False)
    return clock


@contextmanager
def _command(work: Work, device: torch.device) -> Iterator[tuple[FitCLI, StepClock]]:
    """Builds what ``project.fit`` builds, in a folder that is gone afterwards; what it prints goes nowhere."""
    clock = StepClock(work.warm_up, work.steps, device)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as of a command line within another
        cli = FitCLI([*_arguments(work, device), f"--trainer.default_root_dir={folder}"])
        ticks = {f"on_{stage}_batch_end": lambda *_: clock.tick() for stage in ("train", "validation")}
        cli.trainer.callbacks.append(LambdaCallback(**ticks))  # type: ignore[attr-defined]  # set by a connector
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), _interruptible():
            yield cli, clock


def _arguments(work: Work, device: torch.device) -> list[str]:
    return [
        *(f"--seed_everything={SEED}", f"--data={_DATA}", f"--data.device={device}", "--name=run"),
        *(f"--data.size={work.images}", f"--data.image_size={work.image_size}", f"--data.batch_size={work.batch_size}"),
        *(
            "--data.flip=false",
            f"--model.arch={work.arch}",
            *(f"--model.arch_args.{k}={v}" for k, v in work.arch_args.items()),
        ),
        *("--trainer.max_epochs=1", f"--trainer.accelerator={device.type}", "--trainer.devices=1"),
        # the default of 10 where there are so many steps, and more often where there are not
        f"--trainer.log_every_n_steps={min(10, work.steps)}",
    ]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C, to which Lightning and we answer in ways of our own, ends this command like any other."""
    try:
        yield
    except SystemExit as stop:
        raise KeyboardInterrupt from stop
