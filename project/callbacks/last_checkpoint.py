"""Keeps ``last.ckpt``, from which a run goes on exactly, and stops a run when it is asked to."""

import os
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from project.checkpoint_io import keep_as
from project.errors import require
from project.logger import RunLogger
from project.run_folder import CHECKPOINTS, LAST, PREVIOUS
from project.stop_request import EXIT_CODE, StopRequest

CURVES, _FIGURES = "curves", "newest_figures"
_SHARE_OF_TIME = 0.05  # what saves at the ends of epochs may take


class Wish(IntEnum):
    """What a process wants to do between two steps; the largest of all processes' is done."""

    GO_ON = 0
    SAVE = 1
    STOP = 2


class StoppedError(SystemExit):
    """Training was asked to stop; all is saved."""


class LastCheckpoint(Callback):
    """Saves between two steps, where gradients, windows of metrics and the logs of a step are all concluded.

    That is when a batch has been fetched and nothing was done with it. Lightning's ``ModelCheckpoint`` saves while a
    step is being concluded, so that what is logged after it is missing from the curve when the run goes on. Saved is:
    every few minutes; between epochs, unless epochs are so short that it would take more than a twentieth of the time;
    at the end of training; and when SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 asks the run to stop.

    Args:
        every_minutes: The longest time in minutes between two saves.
        every_n_steps: Saves after every so many optimizer steps as well.
    """

    def __init__(self, every_minutes: float = 3.0, every_n_steps: int | None = None) -> None:
        require(every_minutes > 0, "--last_checkpoint.every_minutes", every_minutes, "above 0")
        sensible = every_n_steps is None or every_n_steps > 0
        require(sensible, "--last_checkpoint.every_n_steps", every_n_steps, "above 0")
        self.every_minutes, self.every_n_steps = every_minutes, every_n_steps
        self._request = StopRequest()
        self._resumed = False
        self._figures: dict[str, float] = {}
        self._saved_at, self._save_took = 0.0, 0.0
        self._agreed_at, self._agreed_step, self._next_agreement = 0.0, 0, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock, and listens for signals from here on."""
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self._figures.items()})
        self._saved_at = self._agreed_at = time.monotonic()
        self._agreed_step = trainer.global_step
        self._request.listen()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Saves, or saves and stops, if any process wants to."""
        if self._resumed:
            _correct_progress(trainer)
            self._resumed = False
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._do(self._agree(trainer, between_epochs=batch_idx == 0), trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves the end of training."""
        self._request.ignore()
        self._do(max(Wish.SAVE, self._agree(trainer, between_epochs=True)), trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Signals do again what they did before."""
        self._request.ignore()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Adds the newest figures, and how far the curves have come."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, RunLogger) and trainer.is_global_zero]
        checkpoint[CURVES] = {name: length for logger in loggers for name, length in logger.lengths().items()}
        checkpoint[_FIGURES] = {name: float(value) for name, value in trainer.callback_metrics.items()}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remembers the newest figures, which schedules and other callbacks may look at before there are new ones."""
        if trainer.state.fn == TrainerFn.FITTING:  # where Lightning clears the figures once more before it trains
            self._resumed, self._figures = True, checkpoint[_FIGURES]

    def _agree(self, trainer: Trainer, between_epochs: bool) -> Wish:
        """What all processes do now; they ask each other between epochs and about once a second, not in each step."""
        step, now = trainer.global_step, time.monotonic()
        wish = self._wish(step, now, trainer.is_global_zero, between_epochs)
        if trainer.world_size == 1:
            return wish
        if not (between_epochs or step >= self._next_agreement or self._is_due(step)):
            return Wish.GO_ON
        elapsed = max(now - self._agreed_at, 1e-3)
        rate = (step - self._agreed_step) / elapsed  # steps a second, the same for all once agreed
        mine = torch.tensor([float(wish), rate], device=trainer.strategy.root_device)
        largest, rate = trainer.strategy.reduce(mine, reduce_op="max").tolist()
        self._agreed_at, self._agreed_step, self._next_agreement = now, step, step + max(1, int(rate))
        return Wish(int(largest))

    def _wish(self, step: int, now: float, is_first: bool, between_epochs: bool) -> Wish:
        if self._request.made:
            return Wish.STOP
        elapsed = now - self._saved_at
        cheap = between_epochs and step > 0 and self._save_took <= _SHARE_OF_TIME * elapsed
        timely = is_first and (cheap or elapsed >= 60 * self.every_minutes)  # clocks differ: the first process decides
        return Wish.SAVE if timely or self._is_due(step) else Wish.GO_ON

    def _is_due(self, step: int) -> bool:
        return self.every_n_steps is not None and step > 0 and step % self.every_n_steps == 0

    def _do(self, wish: Wish, trainer: Trainer) -> None:
        if wish > Wish.GO_ON and not trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by a connector
            began = time.monotonic()
            last = Path(trainer.default_root_dir) / CHECKPOINTS / LAST
            written_or_read = self._save_took > 0 or trainer.ckpt_path == str(last)  # otherwise it may be damaged
            if trainer.is_global_zero and written_or_read:
                keep_as(last, PREVIOUS)
            trainer.save_checkpoint(last)
            self._saved_at, self._save_took = time.monotonic(), time.monotonic() - began
        if wish == Wish.STOP:
            # where Lightning has launched a process itself, it kills the first one when that one ends with a code
            launched = trainer.local_rank > 0 and "TORCHELASTIC_RUN_ID" not in os.environ
            raise StoppedError(0 if launched else EXIT_CODE)


def _correct_progress(trainer: Trainer) -> None:
    """Takes back what Lightning gets wrong when it goes on within an epoch.

    It counts the batch that was fetched and the step before it twice, and would leave a schedule that watches a figure
    out at the end of the epoch.
    """
    loop = trainer.fit_loop.epoch_loop
    # not by way of the property of the first, which makes that True where --trainer.max_steps is given
    trainer.fit_loop._restarting = loop.restarting = False
    loop.batch_progress.total.ready = loop.batch_progress.total.completed + 1
    loop._batches_that_stepped = trainer.global_step
