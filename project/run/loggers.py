"""The loggers of a run: TensorBoard and those that the user adds, which write into the run's folder and can resume."""

import csv
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from torch import Tensor

from project.errors import UserError
from project.run.tensorboard import RunLogger, rewind

_FILE = "metrics.csv"
CSV_LOGS = "csv_logs"
"""The folder of the user's own ``CSVLogger``, as the run's ``metrics.csv`` has a row for each epoch."""


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
        partial = self.path.with_name(f".{self.path.name}.partial")
        with open(partial, "w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self.path)


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


def lengths(trainer: Trainer) -> dict[str, int]:
    """How much each logger that can be rewound has written: bytes of event files, rows of CSV files, by name."""
    found: dict[str, int] = {}
    for logger in trainer.loggers if trainer.is_global_zero else []:
        if isinstance(logger, RunLogger):
            found |= logger.lengths()
        elif isinstance(logger, RunCSVLogger):
            found[logger.key(Path(trainer.default_root_dir))] = logger.rows()
    return found


def rewind_all(trainer: Trainer, written: dict[str, int]) -> None:
    """Takes away what was logged after a checkpoint, as it will be logged again.

    Args:
        trainer: In its run's folder.
        written: What :func:`lengths` was when the checkpoint was made.
    """
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


def placed(loggers: Any, folder: Path) -> Any:
    """Lets the loggers of a config write into a run's folder.

    Args:
        loggers: The value of ``--trainer.logger``: one logger, several, a truth value or None.
        folder: The run's folder. Relative places are within it; absolute ones stay.

    Returns:
        The same with Lightning's CSV and TensorBoard loggers replaced by those that can resume.

    Raises:
        UserError: TensorBoard's files would not lie in the run's folder itself.
    """
    if isinstance(loggers, list):
        return [placed(logger, folder) for logger in loggers]
    if not isinstance(loggers, Namespace):
        return loggers
    kind = class_of(loggers)
    if kind in (CSVLogger, RunCSVLogger):
        return _in_folder(loggers, RunCSVLogger, folder)
    if kind in (TensorBoardLogger, RunLogger):
        given = loggers.init_args
        if (given.name, given.version) != ("lightning_logs", None):
            raise UserError("--trainer.logger: TensorBoard's files lie in the run's folder; leave name and version out")
        return _in_folder(loggers, RunLogger, folder)
    return within(loggers, "save_dir", folder)


def class_of(spec: Any) -> Any:
    """The class that a part of a config names, which the parser has imported; None where it is no class."""
    if not isinstance(spec, Namespace) or "class_path" not in spec:
        return None
    module, _, name = spec.class_path.rpartition(".")
    return getattr(import_module(module), name)


def within(spec: Any, argument: str, folder: Path) -> Any:
    """Puts a relative path among a class's arguments into a folder."""
    given = spec.get("init_args") if isinstance(spec, Namespace) else None
    path = given.get(argument) if given is not None else None
    if path is None:
        return spec
    changed = spec.clone()
    changed.init_args[argument] = str(folder / path)
    return changed


def _in_folder(spec: Namespace, kind: type, folder: Path) -> Namespace:
    changed: Namespace = within(spec, "save_dir", folder).clone()
    changed.class_path = f"{kind.__module__}.{kind.__qualname__}"
    if changed.init_args.name == "lightning_logs":  # Lightning's default
        changed.init_args.name = CSV_LOGS if kind is RunCSVLogger else ""
    if changed.init_args.version is None:  # or Lightning would count, and a run that resumes have several
        changed.init_args.version = ""
    return changed
