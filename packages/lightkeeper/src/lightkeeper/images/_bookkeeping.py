"""Logging at the right steps, resuming, and averages of weights, beside training itself."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    WeightAveraging,
)
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..exact._errors import UserError, listed
from ..exact._last_checkpoint import Checkpoint
from ..exact._loggers import is_logged
from ..exact._upstream import follow_until_averaging, length_attributes
from ._checkpoints import BestCheckpoint
from ._predictions import gathered
from ._resuming import require_optimizers

_LENGTH = "length"


class Bookkeeping(Callback):
    """Logs a model's metrics and resumes its runs.

    It is a callback, so that a model overrides most hooks without calling ``super()``.
    """

    _length = ""
    _states: tuple[Sequence[Any], Sequence[Any]] | None = None

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Prepares the loss, which may need to know the data, and compiles the network."""
        if stage != "fit":
            return
        self._length = _decisive_for_length(trainer)
        if prepare := getattr(pl_module.criterion, "prepare", None):
            prepare(trainer.datamodule, pl_module.class_names)  # type: ignore[attr-defined]
        if pl_module.compile_network:
            pl_module.network.compile()  # in place, so that the names of the weights stay

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Checkpoint) -> None:
        """Adds what the lengths of schedules follow from."""
        checkpoint[_LENGTH] = self._length

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Checkpoint) -> None:
        """Leaves out the lengths of schedules where options have changed that decide them.

        Otherwise they stay, although a callback may have changed the batch size since. Keeps the
        states of optimizers until there are any to compare them with.
        """
        if not trainer.training:
            return
        if checkpoint.get(_LENGTH) != self._length:
            for state in checkpoint.get("lr_schedulers", ()):
                for name in length_attributes(state):
                    del state[name]
        self._states = (checkpoint["optimizer_states"], checkpoint["lr_schedulers"])

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Refuses to watch a metric that validation does not log, before an epoch is lost.

        Raises:
            UserError: A callback or a schedule watches such a metric.
        """
        known = {*pl_module.monitors(), *trainer.callback_metrics}
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for part in (*callbacks, *trainer.lr_scheduler_configs):
            monitor = getattr(part, "monitor", None)
            # of others, the sanity check may know nothing yet
            is_of_validation = isinstance(monitor, str) and monitor.startswith("val/")
            if is_of_validation and monitor not in known and getattr(part, "strict", True):
                raise UserError(
                    f"{_watching(part)} {monitor}: validation logs {listed(sorted(known))}; if"
                    " something logs it in whole validations alone, add"
                    " --trainer.num_sanity_val_steps 0"
                )

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Checks what the optimizers and schedules of a resumed run will get."""
        if self._states is not None:
            require_optimizers(trainer, *self._states)
        self._states = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Finds out how many batches make a step within a resumed epoch."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._log_every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # likewise
        self._waiting = [part for part in callbacks if isinstance(part, WeightAveraging)]
        for callback in callbacks:
            # Lightning does this at the start of an epoch, within which a run may resume
            if isinstance(callback, GradientAccumulationScheduler):
                callback.on_train_epoch_start(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: object, batch_idx: int
    ) -> None:
        """Logs at least once an epoch, unless ``log_every_n_steps`` is 0.

        Raises:
            UserError: A data module's loaders came without it, which knows order and augmentation.
        """
        if hasattr(batch, "indices") and trainer.datamodule is None:  # type: ignore[attr-defined]
            raise UserError("a data module's loaders need it: trainer.fit(model, datamodule=data)")
        self._batch_idx = batch_idx
        # other callbacks may change these
        steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        every = math.ceil(min(self._log_every, steps))
        trainer.log_every_n_steps = every  # type: ignore[attr-defined]

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Restores the trainer's own interval of logging."""
        trainer.log_every_n_steps = self._log_every  # type: ignore[attr-defined]

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: Any, optimizer: Optimizer
    ) -> None:
        """Gives an epoch's last step, which may have fewer batches, the mean of its gradients.

        Lightning divides by ``accumulate_grad_batches`` all the same (Lightning #19987).
        """
        batches = self._batch_idx % trainer.accumulate_grad_batches + 1
        if batches < trainer.accumulate_grad_batches:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if parameter.grad is not None:
                    parameter.grad.mul_(trainer.accumulate_grad_batches / batches)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Logs the mean over the steps since the last time, as each step's would cost more.

        Averages of weights that have not started stay at the newest weights, where Lightning's stay
        at the initial ones.
        """
        self._waiting = [part for part in self._waiting if follow_until_averaging(part, pl_module)]
        if is_logged(trainer) and (results := pl_module.conclude("train")):
            # on the CPU, where a progress bar reads them in each step without waiting
            values = {
                f"train/{name}": torch.tensor(results[name])
                for name in map(str, pl_module.train_metrics)
            }
            pl_module.log_dict(values, prog_bar=True)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Forgets an earlier evaluation that was stopped, and synchronises BatchNorm's statistics.

        All processes get the first one's, which DDP does not do within a step of several batches,
        or if the user has it leave this out.
        """
        pl_module.restart("test" if trainer.testing else "val")
        if isinstance(wrapper := trainer.strategy.model, DistributedDataParallel):
            for buffer in wrapper.buffers():  # Lightning's broadcast is of objects
                distributed.broadcast(buffer, 0)

    on_test_start = on_validation_start

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Logs the metrics of the validation set, or of the test set."""
        split = "test" if trainer.testing else "val"
        if not pl_module.is_fitting:
            pl_module.predictions = gathered(trainer, pl_module.collected)
        results = pl_module.conclude(split)
        if results is None or trainer.sanity_checking:
            return
        thresholds = results.pop("thresholds", None)
        if split == "val":
            names = pl_module.class_names
            pl_module.thresholds = dict(zip(names, thresholds, strict=True)) if thresholds else None
        elif pl_module.thresholds:
            results["thresholds"] = list(pl_module.thresholds.values())
        pl_module.results[split] = results
        numbers = {
            f"{split}/{name}": float(results[name])
            for name in map(str, pl_module.metrics_of(split))
            if isinstance(results.get(name), int | float)
        }
        monitors = [getattr(part, "monitor", None) for part in trainer.checkpoint_callbacks]
        for name, value in numbers.items():
            is_shown = name in ("val/loss", "val/accuracy", *monitors)
            pl_module.log(
                name,
                value,
                prog_bar=is_shown,
                # all processes have the same results; "max" does not round, as a mean could
                sync_dist=True,
                rank_zero_only=True,
                reduce_fx="max",
            )

    on_test_epoch_end = on_validation_epoch_end


def _decisive_for_length(trainer: Trainer) -> str:
    """Returns the options, and the number of images, that a run's number of steps follows from."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by a loop
    limits: Any = trainer.limit_train_batches, trainer.overfit_batches  # type: ignore[attr-defined]
    batches = trainer.accumulate_grad_batches, dict(getattr(data, "hparams", {})).get("batch_size")
    images = dict(getattr(data, "split_sizes", dict)()).get("train")
    return str([trainer.max_epochs, trainer.max_steps, *limits, *batches, images])


def _watching(part: object) -> str:
    """Returns the option that says what a callback or a schedule watches."""
    if isinstance(part, BestCheckpoint):
        return "--monitor"
    is_callback = isinstance(part, Callback)
    return f"{type(part).__name__} monitor" if is_callback else "--model.lr_scheduler.monitor"
