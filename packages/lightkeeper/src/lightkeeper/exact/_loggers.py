"""Loggers that resume from a checkpoint, and their states in it."""

import csv
import io
import math
import os
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from ._errors import note
from ._files import write_text
from ._upstream import is_accumulating

LoggerState = dict[str, Any]
"""Where a logger stood, as plain data."""
_EVENT_FILES = "events.out.tfevents.*"


@runtime_checkable
class ResumingLogger(Protocol):
    """A logger that can drop what it logged after a checkpoint, as a resumed run logs it again."""

    def state_dict(self) -> LoggerState:
        """Returns where the logger stands, after it has written all that it was given."""

    def load_state_dict(self, state_dict: LoggerState) -> None:
        """Restores a state; an empty one if a run begins anew."""


def save_loggers(trainer: Trainer) -> dict[str, LoggerState]:
    """Returns the states of the loggers that resume, of the first process."""
    return {name: logger.state_dict() for name, logger in _resuming(trainer).items()}


def load_loggers(trainer: Trainer, states: Mapping[str, LoggerState]) -> None:
    """Restores the states of the loggers that a checkpoint has."""
    for name, logger in _resuming(trainer).items():
        if name in states:
            logger.load_state_dict(states[name])


def begin_anew(trainer: Trainer) -> None:
    """Drops what an earlier run has logged in the same folder, as this run does not resume it."""
    for logger in _resuming(trainer).values():
        logger.load_state_dict({})


def _resuming(trainer: Trainer) -> dict[str, ResumingLogger]:
    loggers = trainer.loggers if trainer.is_global_zero else []
    return {
        f"{type(logger).__qualname__}.{number}": logger
        for number, logger in enumerate(loggers)
        if isinstance(logger, ResumingLogger)
    }


class ResumingTensorBoardLogger(TensorBoardLogger):
    """Cuts its files where a run resumes, so that each step is drawn once.

    Lightning's begins another file, in which the steps since the checkpoint come again. A run that
    begins anew removes the files of before from its folder, so give it ``version=""`` and a folder
    of its own.
    """

    _earlier: Mapping[str, int] | None = None
    _is_loaded = False
    _resumes = False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer; the event files that it finds in its folder are of earlier processes."""
        if self._earlier is None:
            self._earlier = self._sizes()
        return super().experiment

    def state_dict(self) -> LoggerState:
        """Returns the size of each file in bytes, once everything is written."""
        self.save()
        return self._sizes()

    def load_state_dict(self, state_dict: LoggerState) -> None:
        """Cuts or removes what was written later; says what is lost."""
        if self._is_loaded and state_dict:  # for another fit of the same trainer
            self.experiment.close()  # or it might write on; it begins another file
            self._earlier = None
        # also before there is a writer, as where a command finds nothing to resume
        earlier = self._sizes() if self._earlier is None else self._earlier
        for name in [name for name, size in state_dict.items() if earlier.get(name, 0) < size]:
            note(f"'{Path(self.log_dir, name)}' is lost or cut, and with it curves of before")
        for name, size in earlier.items():
            path = Path(self.log_dir, name)
            if name in state_dict:
                os.truncate(path, min(size, state_dict[name]))
            else:
                path.unlink(missing_ok=True)
        self._earlier = {}
        self._is_loaded = True
        # only what is still there has options and a graph
        self._resumes = bool(state_dict.keys() & earlier.keys())

    def log_hyperparams(
        self,
        params: dict[str, object] | Namespace,
        metrics: dict[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Logs options, which the files of a run that resumes have already."""
        super().log_hyperparams(params, {} if self._resumes and metrics is None else metrics, step)

    def log_graph(  # type: ignore[override]  # as Lightning's
        self, model: LightningModule, input_array: Tensor | None = None
    ) -> None:
        """Logs the graph, likewise."""
        if not self._resumes:
            super().log_graph(model, input_array)
        self._resumes = False  # a fit begins with both; what is logged later is new

    def _sizes(self) -> LoggerState:
        files = Path(self.log_dir).glob(_EVENT_FILES)
        return {path.name: path.stat().st_size for path in files}


class ResumingCSVLogger(CSVLogger):
    """Keeps the rows of before where a run resumes.

    Lightning's removes the file of an earlier run in its folder, also of the run that it resumes,
    so give it ``version=""``.
    """

    _is_open = False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer, which removes the file that it finds; that waits aside until it is restored."""
        if self._is_open:  # to change filters lets warnings of others be shown again
            return super().experiment
        self._is_open = True
        path = Path(self.log_dir, "metrics.csv")
        # it is there if an earlier process ended before it had restored the rows
        if path.exists() and not self._aside.exists():
            path.replace(self._aside)
        with warnings.catch_warnings():  # that it will delete them
            warnings.filterwarnings("ignore", "Experiment logs directory")
            return super().experiment

    @property
    def _aside(self) -> Path:
        return Path(self.log_dir, ".metrics.before.csv")

    @property
    def _file(self) -> Path:
        return Path(self.experiment.metrics_file_path)

    @rank_zero_only
    def save(self) -> None:
        """Writes the newest rows; adds columns itself, as Lightning would empty the file first."""
        columns = {*self.experiment.metrics_keys}.union(*self.experiment.metrics)
        if len(columns) > len(self.experiment.metrics_keys) and self._file.exists():
            self._replace(sorted(columns), _rows_of(self._file))
        super().save()

    def state_dict(self) -> LoggerState:
        """Returns the names of the columns and the number of rows, once they are written."""
        self.save()
        rows = len(self._file.read_text().splitlines()) - 1 if self._file.exists() else 0
        return {"columns": list(self.experiment.metrics_keys), "rows": rows}

    def load_state_dict(self, state_dict: LoggerState) -> None:
        """Writes the rows of before; says what is lost."""
        file = self._file  # its writer puts one of before aside, unless that is its own
        if state_dict:
            rows = _rows_of(self._aside if self._aside.exists() else file)[: state_dict["rows"]]
            if len(rows) < state_dict["rows"]:
                note(f"'{file}' is lost or cut, and with it rows of before")
            self._replace(state_dict["columns"], rows)
        self._aside.unlink(missing_ok=True)

    def _replace(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self._file, text.getvalue())
        self.experiment.metrics_keys = list(columns)


def _rows_of(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def logging_interval(trainer: Trainer) -> int:
    """Returns the number of steps between two that are logged: at most an epoch's; 0 logs none."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
    return math.ceil(min(every, trainer.num_training_batches / trainer.accumulate_grad_batches))


def is_logged(trainer: Trainer) -> bool:
    """Returns True if the current batch concludes a step after which training is logged.

    That is every ``log_every_n_steps``, or the last step of each epoch that has fewer, or whose
    length is not known; at this last one, Lightning's loggers write steps only if
    ``classifier_callbacks`` of ``lightkeeper.images`` are there.
    """
    every = logging_interval(trainer)
    if every == 0 or is_accumulating(trainer):
        return False
    return (
        trainer.global_step % every == 0
        or trainer.should_stop
        or (math.isinf(trainer.num_training_batches) and trainer.is_last_batch)
    )
