"""``metrics.csv``: a row for each epoch."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

_NOT_REPRODUCIBLE = "train/images_per_second"


class MetricsCSV(Callback):
    """Writes the metrics of each epoch into ``metrics.csv`` in the run's folder.

    A row has the epoch, counted from 1, the optimizer steps so far, the newest training metrics and
    learning rate, and the metrics of the epoch's validation, if there was one. It leaves out the
    speed, so that a resumed run ends with the same bytes. The checkpoint has the rows; those that
    an interrupted run wrote after it are replaced.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, float]] = {}

    def state_dict(self) -> dict[str, object]:
        """Returns the rows so far."""
        return {"rows": self._rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the rows that a checkpoint saved."""
        self._rows = dict(state_dict["rows"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replaces rows that are newer than the checkpoint."""
        self._write(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins the epoch's row with the metrics of its validation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._update(trainer, trainer.current_epoch + 1, of_validation=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds the training metrics to the epoch's row."""
        self._update(trainer, trainer.current_epoch + 1)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds to the last row what other callbacks logged at the end of its epoch."""
        if self._rows:
            self._update(trainer, max(self._rows))

    on_train_end = on_train_epoch_start

    def _update(self, trainer: Trainer, epoch: int, of_validation: bool = False) -> None:
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name != _NOT_REPRODUCIBLE and name.startswith("val/") == of_validation
        }
        row = {"epoch": epoch, "step": trainer.global_step, **metrics}
        # a new dict, as a checkpoint that is being written may hold the old one
        rows = {**self._rows, epoch: {**self._rows.get(epoch, {}), **row}}
        if rows != self._rows:  # what the last checkpoint has is not written after it
            self._rows = rows
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        names = {name for row in self._rows.values() for name in row} - {"epoch", "step"}
        Path(trainer.default_root_dir).mkdir(parents=True, exist_ok=True)
        with open(Path(trainer.default_root_dir) / "metrics.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, ["epoch", "step", *sorted(names)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._rows.values())
