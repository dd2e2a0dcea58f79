"""Logging at the right steps, resuming, and averages of weights, beside training itself."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import UserError, printable
from ..run.loggers import is_logged
from ..upstream import follow_until_averaging, length_attributes

if TYPE_CHECKING:
    from .module import ClassifierModule, Split

_REFUSED: dict[type[Callback], str] = {
    # it ignores train_bn=False for running statistics, too (Lightning #21901, #15062)
    BackboneFinetuning: "would freeze again what was unfrozen; train the head first, with"
    " --model.freeze backbone, and then the whole network from its checkpoint",
    StochasticWeightAveraging: "could not continue within an epoch; average the weights with"
    " EMAWeightAveraging",
}
"""Callbacks that do not resume exactly, and why."""


class Bookkeeping(Callback):
    """Logs a model's metrics and resumes its runs.

    It is a callback, so that a model overrides most hooks without calling ``super()``.
    """

    def __init__(self, model: "ClassifierModule") -> None:
        self.model = model

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Prepares the loss, which may need to know the data, and compiles the network."""
        if stage == "fit":
            model = self.model
            if hasattr(model.criterion, "prepare"):
                data = trainer.datamodule  # type: ignore[attr-defined]  # set by fit
                model.criterion.prepare(data, model.class_names)
            if model.compile_network:
                model.network.compile()  # in place, so that the names of the weights stay

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers the lengths of schedules, before a resumed run restores other ones."""
        schedules = [vars(config.scheduler) for config in trainer.lr_scheduler_configs]
        self._lengths = [
            (schedule, {name: schedule[name] for name in length_attributes(schedule)})
            for schedule in schedules
        ]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives a resumed schedule the length of this run, and checks a resumed optimizer."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._log_every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # likewise
        self._waiting = [part for part in callbacks if isinstance(part, WeightAveraging)]
        for schedule, lengths in self._lengths:
            schedule.update(lengths)
        for optimizer in trainer.optimizers:
            _require_fitting_state(optimizer, trainer.ckpt_path)
        for callback in callbacks:
            # Lightning does this at the start of an epoch, within which a run may resume
            if isinstance(callback, GradientAccumulationScheduler):
                callback.on_train_epoch_start(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
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

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
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
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Logs the mean over the steps since the last time, as each step's would cost more.

        Averages of weights that have not started stay at the newest weights, where Lightning's stay
        at the initial ones.
        """
        model = self.model
        self._waiting = [part for part in self._waiting if follow_until_averaging(part, model)]
        if is_logged(trainer) and (results := model.conclude("train")):
            # on the CPU, where a progress bar reads them in each step without waiting
            values = {
                f"train/{name}": torch.tensor(results[name])
                for name in map(str, model.train_metrics)
            }
            model.log_dict(values, prog_bar=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the interval between logs as it was given."""
        trainer.log_every_n_steps = self._log_every  # type: ignore[attr-defined]

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Has DDP send the first process's statistics of BatchNorm.

        It does not within a step of several batches.
        """
        if isinstance(wrapper := trainer.strategy.model, DistributedDataParallel):
            wrapper.require_forward_param_sync = True
            for buffer in wrapper.buffers() if not wrapper.forward_sync_buffers else ():
                # Lightning's broadcast is of objects; the user has DDP leave this out of each step
                distributed.broadcast(buffer, 0)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the metrics of the validation set."""
        self._log(trainer, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the metrics of the test set."""
        self._log(trainer, "test")
        if self.model.weights_step is not None:  # where Lightning's loggers put what is logged
            pl_module.log("step", float(self.model.weights_step), prog_bar=False)

    def _log(self, trainer: Trainer, split: "Split") -> None:
        model = self.model
        results = model.conclude(split)
        if results is None or trainer.sanity_checking:
            return
        thresholds = results.pop("thresholds", None)
        coverage = results.pop("coverage", {})
        if split == "val":
            names = model.class_names
            model.thresholds = dict(zip(names, thresholds, strict=True)) if thresholds else None
            model.coverage = coverage
            model.validated_step = trainer.global_step
        elif model.thresholds:
            results["thresholds"] = list(model.thresholds.values())
        model.results[split] = results
        monitors = [getattr(part, "monitor", None) for part in trainer.checkpoint_callbacks]
        for metric in map(str, model.metrics_of(split)):
            name = f"{split}/{metric}"
            value = results.get(metric)
            if isinstance(value, int | float):
                model.log(
                    name,
                    float(value),
                    prog_bar=metric == "accuracy" or name in monitors,
                    # every process has the same results; "max" does not round, as a mean could
                    sync_dist=True,
                    rank_zero_only=True,
                    reduce_fx="max",
                )


def _require_fitting_state(optimizer: Optimizer, source: object) -> None:
    """Refuses a state of other shapes: fused, torch would write beyond the end of a tensor."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            for name, value in optimizer.state.get(parameter, {}).items():
                if name != "step" and isinstance(value, Tensor) and value.shape != parameter.shape:
                    raise UserError(
                        f"'{source}' does not fit this optimizer: {printable(name)} has the shape"
                        f" {tuple(value.shape)}, not {tuple(parameter.shape)}"
                    )


def require_supported_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuses Lightning's callbacks, and subclasses of them, that do not resume exactly."""
    for callback in callbacks:
        for kind, reason in _REFUSED.items():
            if isinstance(callback, kind):
                name = type(callback).__name__
                raise UserError(f"--trainer.callbacks: a resumed {name} {reason}")
