"""Ends a run whose folder is no longer where it was."""

import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..errors import UserError


class InPlace(Callback):
    """Looks whether the run's folder is still the one that training began in, before other callbacks write there.

    They write by its path, at which there may be a link to elsewhere by now, or another run.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: os.stat_result | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers the folder."""
        if trainer.is_global_zero and self._folder.exists():  # a dry run has none
            self._found = self._folder.stat()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Looks before the best checkpoint is saved."""
        if self._found is None:
            return
        try:
            in_place = os.path.samestat(self._found, self._folder.stat())
        except OSError:
            in_place = False
        if not in_place:
            raise UserError(out_of_place(self._folder))

    # before metrics.csv, the end of training, plots and metrics.json are written
    on_train_epoch_end = on_train_end = on_test_end = on_validation_end

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Looks before a checkpoint is saved between two steps."""
        self.on_validation_end(trainer, pl_module)


def out_of_place(folder: Path | str) -> str:
    """What to say where a run's folder is no longer where it was."""
    return f"'{folder}' was removed, moved or replaced during its run, which ends here"
