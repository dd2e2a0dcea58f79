"""How long a command takes to start, in a process of its own."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.timing import Measure
from project.engine.errors import UserError

_ROOT = Path(__file__).parents[1]
_TINY = ["--data.train_size=64", "--data.val_size=64", "--data.test_size=64"]

COMMANDS: dict[str, list[str]] = {
    "import lightning.pytorch": ["-c", "import lightning.pytorch"],
    "project.fit --help": ["-m", "project.fit", "--help"],
    "project.fit, first step": [
        *("-m", "project.fit", *_TINY, "--trainer.devices=1", "--trainer.default_root_dir={folder}"),
        "--trainer.callbacks=benchmarks.startup.EndAfterFirstStep",
    ],
}


class EndAfterFirstStep(Callback):
    """Ends the process at once when the first training step is done: how long it ran is what a user waits for."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends it, without what Python does at its end."""
        outputs["loss"].item()  # a GPU may still be at it
        os._exit(0)


def startup_variants(commands: dict[str, list[str]]) -> dict[str, Measure]:
    """Measures how long commands run.

    Args:
        commands: Arguments of Python, see :class:`benchmarks.plan.Plan`.
    """
    return {name: partial(_seconds, arguments) for name, arguments in commands.items()}


def _seconds(arguments: list[str], _round: int) -> float:
    with TemporaryDirectory() as folder:
        command = [sys.executable, *(argument.format(folder=folder) for argument in arguments)]
        began = time.perf_counter()
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        took = time.perf_counter() - began
    if ended.returncode != 0:
        said = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
        raise UserError(f"'{' '.join(command)}' ended with code {ended.returncode} and said: {said}")
    return took
