"""Runs of the real command that take no time, with a small network."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from project.engine.cli.entry import one_line_errors
from project.engine.training.last_checkpoint import StoppedError
from project.fit import FitCLI
from tests.conftest import QUIET, TINY_DATA, TINY_TRAINER, fit
from tests.stress import SmallNetwork, differences, outcome

DATA = [*TINY_DATA, "--data.cutout=8"]
SMALL = [
    *TINY_TRAINER,
    *QUIET,
    "--trainer.precision=32-true",
    "--trainer.max_epochs=2",
    "--name=run",
]  # 8 steps


class AtStep(Callback):
    """Sends this process a signal in a step, counted from 1, as the system might; 0 is before the first, one too many in the test."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def on_train_start(self, trainer, pl_module) -> None:
        if self.step == 0:
            os.kill(os.getpid(), self.number)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        if trainer.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)

    def on_test_start(self, trainer, pl_module) -> None:
        if trainer.global_step < self.step:
            os.kill(os.getpid(), self.number)


def small(*args: str, data=DATA, callbacks=(), network=SmallNetwork) -> FitCLI:
    """Runs ``python -m project.fit`` in this process, by default on drawn flowers, with further callbacks."""
    own = FitCLI._callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "project.model.classifier.build_network", lambda arch, classes, args: network(classes)
        )
        patch.setattr(FitCLI, "_callbacks", lambda cli: [*own(cli), *callbacks])
        return fit(*data, *SMALL, *args)


def stop_at(step: int, *args: str, number: int = signal.SIGTERM, **options) -> StoppedError:
    with pytest.raises(StoppedError) as stopped:
        small(*args, callbacks=[AtStep(step, number)], **options)
    return stopped.value


def require_same_end(run: Path, expected: dict[str, Any], but: str = "?") -> None:
    found = [text for text in differences(expected, outcome(run)) if but not in text]
    assert not found, "\n".join(found)
    assert [folder.name for folder in run.parent.iterdir()] == [run.name]


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


def load(path: Path):
    return torch.load(path, weights_only=True)


def rows(path: Path | str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
