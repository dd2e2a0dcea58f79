"""The loggers of a run: TensorBoard and those that the user adds, which write into the run's folder and can resume."""

import csv
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from ..errors import UserError
from .checkpoint import read_checkpoint
from .tensorboard import RunLogger, add_hyperparameters, rewind
from .whole_file import whole_file

SERVICE_RUNS = "service_runs"
_FILE = "metrics.csv"
CSV_LOGS = "csv_logs"
"""The folder of the user's own ``CSVLogger``, as the run's ``metrics.csv`` has a row for each epoch."""

RESUMED_BY: dict[type[Logger], str] = {WandbLogger: "version", MLFlowLogger: "run_id"}
"""The argument by which a logger continues what its service knows as a run; without it, it starts another."""


class _Rows:
    """The rows of a CSV file: those on the disk stay, and new ones are appended.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.metrics = path, list[dict[str, Any]]()
        self._names: list[str] | None = None

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """Adds a row."""
        plain = {name: value.item() if isinstance(value, Tensor) else value for name, value in metrics.items()}
        self.metrics.append({**plain, "step": step})

    def log_hparams(self, params: dict[str, Any]) -> None:
        """Leaves them to the run's ``config.yaml``."""

    def save(self) -> None:
        """Appends what was added; where that brings new columns, replaces the file by one that has them."""
        if not self.metrics:
            return
        if self._names is None:
            self._names = list(rows[0]) if (rows := self.read()) else []
        names = sorted({*self._names, *(name for row in self.metrics for name in row)})
        if names != self._names:
            self.write(names, self.read())
            self._names = names
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, names).writerows(self.metrics)
        self.metrics = []

    def read(self) -> list[dict[str, Any]]:
        """The rows on the disk."""
        if not self.path.exists():
            return []
        with open(self.path, newline="") as file:
            return list(csv.DictReader(file))

    def write(self, names: list[str], rows: list[dict[str, Any]]) -> None:
        """Replaces the file, which is whole at every moment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self.path) as partial, open(partial, "w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


class RunCSVLogger(CSVLogger):
    """Lightning's ``CSVLogger``, but a run that resumes keeps the rows that it has; Lightning's removes them."""

    _rows: _Rows | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """What writes the rows."""
        if self._rows is None:
            self._rows = _Rows(Path(self.log_dir) / _FILE)
        return self._rows

    def finalize(self, status: str) -> None:
        """Writes the last rows."""
        self.save()

    def key(self, folder: Path) -> str:
        """The name under which a checkpoint keeps how many rows there are: the file's, from the run's folder."""
        return os.path.relpath(Path(self.log_dir) / _FILE, folder)

    def rows(self) -> int:
        """How many rows there are once everything is written."""
        self.save()
        return len(self.experiment.read())

    def rewind(self, count: int) -> None:
        """Takes away all rows but the first ``count``, as they will be logged again."""
        rows = self.experiment.read()
        if len(rows) > count:
            self.experiment.write(list(rows[0]), rows[:count])


class RunMLFlowLogger(MLFlowLogger):
    """Lightning's ``MLFlowLogger``, but a run that resumes logs nothing twice: MLflow takes no metric back.

    What a resumed run would log again are the same numbers.
    """

    _logged: dict[str, int] | None = None

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs metrics, but for those that MLflow had of this step when the run was resumed."""
        if self._logged is None:
            self._logged = self._last_steps()
        new = {name: value for name, value in metrics.items() if step is None or step > self._logged.get(name, -1)}
        if new:
            super().log_metrics(new, step)

    def _last_steps(self) -> dict[str, int]:
        """The last step at which each metric was logged so far."""
        client, run = self.experiment, self.run_id
        names = client.get_run(run).data.metrics
        return {name: max(found.step for found in client.get_metric_history(run, name)) for name in names}


def log_settings(trainer: Trainer, values: dict[str, Any], metrics: Iterable[str]) -> None:
    """Gives every logger what a new run was asked to do.

    Args:
        trainer: Before its first step.
        values: By name; those of a dict as ``dict.name``. Those of the data module and the trainer are added.
        metrics: The names of metrics, without the set that they are measured on.
    """
    data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
    settings = {"data": type(data).__name__, "max_epochs": trainer.max_epochs, "precision": trainer.precision}
    served = {name: getattr(data, name, None) for name in ("image_size", "batch_size", "seed")}
    flat = {**_flat(values), **settings, **served}
    plain = {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in flat.items()}
    add_hyperparameters(trainer, plain, metrics)
    for logger in trainer.loggers:
        if not isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(plain)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def service_runs(trainer: Trainer) -> dict[str, list[str | None]]:
    """What services call the run, for :func:`project.engine.run.placing.placed` to continue it.

    Returns:
        By the class of loggers, a name for each of them in their order; None where a service has none.
    """
    loggers = trainer.loggers if trainer.is_global_zero else []
    versions = {kind: [logger.version for logger in loggers if isinstance(logger, kind)] for kind in RESUMED_BY}
    return {
        kind.__name__: [None if version is None else str(version) for version in found]
        for kind, found in versions.items()
        if found
    }


def known_runs(checkpoints: Iterable[Path]) -> Mapping[str, Any]:
    """What :func:`service_runs` was when the first of some checkpoints that can be read was made, unchecked."""
    for path in checkpoints:
        with suppress(UserError):
            found = read_checkpoint(path).get(SERVICE_RUNS)
            return found if isinstance(found, Mapping) else {}
    return {}


def lengths(trainer: Trainer) -> dict[str, int]:
    """How much each logger that can be rewound has written: bytes of event files, rows of CSV files, by name."""
    found: dict[str, int] = {}
    for logger in trainer.loggers if trainer.is_global_zero else []:
        if isinstance(logger, RunLogger):
            found |= logger.lengths()
        elif isinstance(logger, RunCSVLogger):
            found[logger.key(Path(trainer.default_root_dir))] = logger.rows()
    return found


def rewind_all(trainer: Trainer, written: Any) -> None:
    """Takes away what was logged after a checkpoint, as it will be logged again.

    Args:
        trainer: In its run's folder.
        written: What :func:`lengths` was when the checkpoint was made.

    Raises:
        UserError: It is not that, as where the file was changed.
    """
    if not (isinstance(written, dict) and all(isinstance(length, int) and length >= 0 for length in written.values())):
        raise UserError("the checkpoint does not say how much of the curves belongs to it; use another --name")
    folder = Path(trainer.default_root_dir)
    rewind(folder, written)
    for logger in trainer.loggers:
        if isinstance(logger, RunCSVLogger):
            logger.rewind(written.get(logger.key(folder), 0))


def own_first(given: Any, folder: Path) -> list[Logger]:
    """TensorBoard's logger in the run's folder, and then those that the user adds; none where the user says so.

    Args:
        given: What ``--trainer.logger`` is, as Lightning takes it.
        folder: The run's folder.
    """
    if given is False:
        return []
    added = [] if given in (None, True) else [given] if isinstance(given, Logger) else list(given)
    own = [] if any(isinstance(logger, RunLogger) for logger in added) else [RunLogger(folder, "", "")]
    return [*own, *added]
