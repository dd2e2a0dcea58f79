"""Keeps ``last.ckpt``, from which a run resumes exactly, and stops a run on request."""

import time
from collections.abc import Iterable, Mapping, Set
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from ._checkpoint_io import Checkpoint, first_sound
from ._errors import UserError, listed, require
from ._files import CHECKPOINTS, LAST, PREVIOUS, resumable
from ._loader import note_inexact_loaders
from ._loggers import begin_anew, load_loggers, save_loggers
from ._metric_states import cpu_copies, gather, load_metrics, save_metrics
from ._own_tensors import (
    buffers_of,
    gradients_of,
    has_own_buffers,
    keeps_gradients,
    restore_buffers,
    restore_gradients,
)
from ._processes import EXIT_CODE, StopRequest, end_with_first
from ._reading import read_file
from ._training import convert_to_double, has_time_left, has_timed_out, restore_numbers
from ._upstream import (
    correct_progress,
    remember_last_saved,
    reopen_epoch,
    restore_steps_saved,
    steps_saved,
)
from ._upstream_loop import (
    exact_loop,
    forget_epoch,
    logged_metrics,
    open_loaders,
    uncount_fetched,
    validated_metrics,
)

_BUFFERS = "buffers"
_GRADIENTS = "gradients"
_LOGGED = "logged_metrics"
_LOGGERS = "loggers"
_METRICS = "newest_metrics"
_NEWEST_LOGGED = "newest_logged"
_SHOULD_STOP = "should_stop"
_STATES = "metric_states"
_STEPS_SAVED = "steps_saved"
_TIMED_OUT = "timed_out"
_SHARE_OF_TIME = 0.05  # what saves at the ends of epochs may take


class Action(IntEnum):
    """Requests of a process between two steps; all processes do the largest."""

    CONTINUE = 0
    SAVE = 1
    STOP = 2


class StoppedError(SystemExit):
    """Training was asked to stop; all is saved."""


def newest_checkpoint(folder: str | Path) -> Path | None:
    """Returns the checkpoint that a run in a folder resumes from; None if it begins.

    That is what :class:`LastCheckpoint` saved last, or if this is damaged, as of a disk that has
    lost its power, the one before.

    Args:
        folder: The ``default_root_dir`` of the run's trainer.

    Raises:
        UserError: All that there are are damaged.
    """
    return first_sound(resumable(folder), read_file)[0]


class LastCheckpoint(Callback):
    """Saves ``last.ckpt`` between two steps, where all of a step is concluded.

    That is when a batch has been fetched and nothing was done with it. Lightning's
    ``ModelCheckpoint`` saves while a step is being concluded, so that what is logged after it would
    be missing from the curve of the resumed run. Saves in ``checkpoints`` of the trainer's
    ``default_root_dir``, and keeps the file of before as ``previous.ckpt``, every few minutes;
    between epochs, unless that would take more than a twentieth of the time; at the end of
    training; and when SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 asks the run to stop, which ends the
    program with code 75.

    It adds to each checkpoint what else resuming needs: the states of the model's torchmetrics and
    of the values that it logs ``on_epoch``, the newest metrics, the places of loggers that resume,
    and the buffers of each process where DDP shares none. To those that it saves itself also the
    gradients of a module that steps by hand or has ``optimizer_zero_grad``, which may be a sum over
    batches that is not stepped with yet.

    Args:
        every_minutes: The longest time in minutes between two saves.
        every_n_steps: Saves after every so many optimizer steps as well.
    """

    def __init__(self, every_minutes: float = 3.0, every_n_steps: int | None = None) -> None:
        require(every_minutes > 0, "every_minutes", every_minutes, "above 0")
        require(
            every_n_steps is None or every_n_steps > 0, "every_n_steps", every_n_steps, "above 0"
        )
        self.every_minutes = every_minutes
        self.every_n_steps = every_n_steps
        self._request = StopRequest()
        self._loaded: Checkpoint = {}  # what of a checkpoint is left to restore
        self._is_saving = False
        self._begins = False  # loggers' files are as an earlier process left them
        self._save_took = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Handles signals, in training and during the final test."""
        convert_to_double(trainer, pl_module)
        exact_loop(trainer)
        end_with_first(trainer)
        if stage == "fit":  # another one, perhaps
            self._request.made = False
            self._loaded = {}
            self._begins = True
        self._request.listen()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: object) -> None:
        """Restores the handlers of signals."""
        self._request.release()

    on_exception = teardown  # type: ignore[assignment]  # another name of its last argument

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses a ModelCheckpoint that would write the same files, and machines that share none."""
        _require_same_file(trainer, self._loaded.get("global_step"))
        require_own_files(
            trainer.checkpoint_callbacks, trainer.default_root_dir, {"last", "previous"}
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores what Lightning and torch cast as they load, or begins loggers' files anew."""
        self._begins = False
        if self._loaded:
            open_loaders(trainer)
            remember_last_saved(trainer)
        else:
            begin_anew(trainer)
        note_inexact_loaders(trainer)
        self._restore(trainer, pl_module)
        restore_gradients(trainer, pl_module, self._loaded.pop(_GRADIENTS, []))
        restore_buffers(trainer, pl_module, self._loaded.pop(_BUFFERS, []))
        self._saved_at = self._agreed_at = time.monotonic()
        self._agreed_step = self._next_agreement = trainer.global_step
        self._checked_step = max(0, trainer.global_step - 1)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Saves, or saves and stops, if any process wants to."""
        if self._loaded:
            correct_progress(trainer, self._loaded)
            logged = self._loaded.get(_LOGGED)  # where it may be of an epoch's end
            if batch_idx == 0 and logged is not None:
                forget_epoch(trainer, logged)
            self._loaded = {}
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._save_or_stop(self._agree(trainer, between_epochs=batch_idx == 0), trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves the end of training."""
        self._save_or_stop(max(Action.SAVE, self._agree(trainer, between_epochs=True)), trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the newest metrics of a run that had ended, in which Lightning does nothing."""
        self._begins = False
        self._restore(trainer, pl_module)

    def on_test_batch_start(self, trainer: Trainer, *_: object) -> None:
        """Ends the process if a signal came: outside of training, nothing is left to save."""
        if self._request.made and trainer.state.fn != "fit":
            _stop(trainer)

    on_validation_batch_start = on_test_batch_start  # type: ignore[assignment]  # other names
    on_predict_batch_start = on_test_batch_start  # type: ignore[assignment]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        """Adds states of metrics and loggers, and whether training was ended."""
        # a Tuner saves, and restores, before training has begun
        checkpoint[_LOGGERS] = {} if self._begins else save_loggers(trainer)
        # what saves as a validation ends does so before Lightning resets its metrics
        concluded = [] if self._is_saving else validated_metrics(trainer)
        checkpoint[_STATES] = save_metrics(pl_module, concluded)
        checkpoint[_SHOULD_STOP] = trainer.should_stop
        checkpoint[_TIMED_OUT] = has_timed_out(trainer)
        checkpoint[_STEPS_SAVED] = steps_saved(trainer)
        if not self._is_saving:
            checkpoint[_LOGGED] = logged_metrics(trainer)
        else:
            uncount_fetched(trainer, checkpoint)
            if keeps_gradients(pl_module):
                checkpoint[_GRADIENTS] = gradients_of(pl_module)
        if has_own_buffers(trainer):
            checkpoint[_BUFFERS] = buffers_of(pl_module)
        checkpoint[_METRICS] = cpu_copies(_tensors(trainer.callback_metrics))
        checkpoint[_NEWEST_LOGGED] = cpu_copies(_tensors(trainer.logged_metrics))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        """Restores states; remembers the newest metrics, at which schedules may look at first."""
        if not trainer.training:
            return
        convert_to_double(trainer, pl_module)  # what a WeightAveraging has configured since setup
        # Lightning clears the trainer's metrics before, and casts the module's afterwards; a
        # checkpoint from before this callback has no states
        self._loaded = {_STATES: [], **checkpoint}
        self._loaded.pop("state_dict", None)  # which need not stay in memory
        load_loggers(trainer, checkpoint.get(_LOGGERS, {}))
        restore_steps_saved(trainer, checkpoint.get(_STEPS_SAVED, {}))
        goes_on = checkpoint.get(_TIMED_OUT, False) and has_time_left(trainer, checkpoint)
        trainer.should_stop = checkpoint.get(_SHOULD_STOP, False) and not goes_on
        is_done = 0 <= trainer.max_steps <= checkpoint["global_step"]
        if not (trainer.should_stop or is_done):
            reopen_epoch(checkpoint)

    def _restore(self, trainer: Trainer, module: LightningModule) -> None:
        # a checkpoint from before has numbers
        trainer.callback_metrics.update(_tensors(self._loaded.pop(_METRICS, {})))
        trainer.logged_metrics.update(_tensors(self._loaded.pop(_NEWEST_LOGGED, {})))
        if (states := self._loaded.pop(_STATES, None)) is not None:
            load_metrics(trainer, module, states)
        restore_numbers(trainer, self._loaded.pop("optimizer_states", []))

    def _agree(self, trainer: Trainer, between_epochs: bool) -> Action:
        """Returns what all processes do now.

        They agree between epochs and about once a second, not in each step.
        """
        step = trainer.global_step
        now = time.monotonic()
        every = self.every_n_steps
        is_step = every is not None and step // every > self._checked_step // every
        self._checked_step = step  # a batch may take no step, or several
        # clocks differ: the first process decides
        is_time = trainer.is_global_zero and self._is_save_due(now, between_epochs and step > 0)
        action = Action.SAVE if is_step or is_time else Action.CONTINUE
        if self._request.made:
            action = Action.STOP
        if trainer.world_size == 1:
            return action
        if not (between_epochs or is_step or step >= self._next_agreement):
            return Action.CONTINUE
        # steps a second, the same for all once agreed
        rate = (step - self._agreed_step) / max(now - self._agreed_at, 1e-3)
        request = torch.tensor([float(action), rate], device=trainer.strategy.root_device)
        largest, rate = trainer.strategy.reduce(request, reduce_op="max").tolist()
        self._agreed_at = now
        self._agreed_step = step
        self._next_agreement = step + max(1, int(rate))
        return Action(int(largest))

    def _is_save_due(self, now: float, between_epochs: bool) -> bool:
        elapsed = now - self._saved_at
        is_cheap = between_epochs and self._save_took <= _SHARE_OF_TIME * elapsed
        return is_cheap or elapsed >= 60 * self.every_minutes

    def _save_or_stop(self, action: Action, trainer: Trainer) -> None:
        if action > Action.CONTINUE and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            began = time.monotonic()
            last = Path(trainer.default_root_dir) / CHECKPOINTS / LAST
            # one that was neither written nor read here may be damaged
            is_sound = self._save_took > 0 or trainer.ckpt_path == str(last)
            if trainer.is_global_zero and is_sound and last.exists():
                last.replace(last.with_name(PREVIOUS))
            self._is_saving = True
            trainer.save_checkpoint(last, weights_only=False)  # said, as Lightning notes a default
            self._is_saving = False
            self._saved_at = time.monotonic()
            self._save_took = self._saved_at - began
        if action == Action.STOP:
            _stop(trainer)


def _tensors(metrics: Mapping[str, object]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value) for name, value in metrics.items()}


def require_own_files(callbacks: Iterable[Callback], root: str, names: Set[str]) -> None:
    """Refuses a ModelCheckpoint that would write a run's checkpoints, by their names."""
    folder = Path(root, CHECKPOINTS).resolve()
    for part in callbacks:
        if isinstance(part, ModelCheckpoint):
            taken = names & {part.filename, part.save_last and part.CHECKPOINT_NAME_LAST}
            if taken and Path(part.dirpath or folder).resolve() == folder:
                raise UserError(
                    f"{type(part).__name__} would write {listed(taken)}.ckpt, a checkpoint of the"
                    " run; give it another filename or dirpath"
                )


def _require_same_file(trainer: Trainer, step: int | None) -> None:
    """Refuses that processes resume from different files, in which they would wait for ever.

    A machine may see an older file of the same name: a copy of its own, or what its cache of a
    shared folder still has.
    """
    name = Path(trainer.ckpt_path or "none").name
    names = {*gather(name if step is None else f"{name} of step {step}")}
    if len(names) > 1:
        raise UserError(
            f"processes resume from different files ({listed(sorted(names))}): all machines must"
            f" share the folder '{trainer.default_root_dir}'"
        )


def _stop(trainer: Trainer) -> NoReturn:
    # Lightning kills the first process if one that it has launched itself ends with a code
    environment = getattr(trainer.strategy, "cluster_environment", None)
    launched = trainer.local_rank > 0 and isinstance(environment, LightningEnvironment)
    raise StoppedError(0 if launched else EXIT_CODE)
