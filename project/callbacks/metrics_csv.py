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
        self._rows: list[dict[str, float]] = []
        self._validation: dict[str, float] = {}

    def state_dict(self) -> dict[str, object]:
        """Returns the rows so far."""
        return {"rows": self._rows, "validation": self._validation}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the rows that a checkpoint saved."""
        self._rows = list(state_dict["rows"])
        self._validation = dict(state_dict["validation"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Overwrites rows that are newer than the checkpoint; a continued epoch gets a new row."""
        if self._rows and self._rows[-1]["epoch"] > trainer.current_epoch:
            *self._rows, last = self._rows
            self._validation = {name: last[name] for name in last if name.startswith("val/")}
        self._write(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the metrics of this epoch's validation."""
        if not trainer.sanity_checking:
            self._validation = _metrics(trainer, of_validation=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds the epoch's row."""
        row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step}
        self._rows = [*self._rows, {**row, **_metrics(trainer), **self._validation}]
        self._validation = {}
        self._write(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds to the last row what other callbacks logged at the end of its epoch."""
        late = _metrics(trainer)
        if self._rows and not late.items() <= self._rows[-1].items():
            # a new list, as a checkpoint that is being written may hold the old one
            self._rows = [*self._rows[:-1], {**self._rows[-1], **late}]
            self._write(trainer)

    on_train_end = on_train_epoch_start

    def _write(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        path = Path(trainer.default_root_dir) / "metrics.csv"
        if not self._rows:
            path.unlink(missing_ok=True)
            return
        names = dict.fromkeys(name for row in self._rows for name in row)
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(names), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._rows)


def _metrics(trainer: Trainer, of_validation: bool = False) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in sorted(trainer.callback_metrics.items())
        if name != _NOT_REPRODUCIBLE and name.startswith("val/") == of_validation
    }
