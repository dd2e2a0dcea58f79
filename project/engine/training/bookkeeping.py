"""Logging at the right steps, resuming, and averages of weights: what a classifier's trainer does beside training."""

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import UserError, listed
from ..run.checkpoint import ABOUT
from ..run.loggers import is_logged, log_settings
from ..run.progress import note
from ..run.settings import is_plain
from ..upstream import follow_until_averaging, length_attributes, resumes_within_epoch
from .fitting import changed_images, require_fitting_state, require_same_settings

_HOW = ("params", "initial_lr", "foreach", "fused", "capturable", "differentiable", "maximize")
"""Settings of an optimizer that say how it computes, not what, or that are said elsewhere."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Bookkeeping(Callback):
    """Logs metrics and resumes runs: a callback, so that a model overrides most hooks without calling ``super()``.

    Its ``model`` is a :class:`.module.ClassifierModule`.
    """

    def setup(self, trainer: Trainer, model: Any, stage: str) -> None:
        """Prepares the loss, which may need to know the data, and compiles the network."""
        if stage == "fit":
            if hasattr(model.criterion, "prepare"):
                model.criterion.prepare(trainer.datamodule, model.class_names)  # type: ignore[attr-defined]
            if model.compile_network:
                model.network.compile()  # in place, so that the names of the weights stay

    def on_fit_start(self, trainer: Trainer, model: Any) -> None:
        """Compares the settings of a resumed run, before Lightning restores the optimizer's state."""
        model.settings = _training_settings(trainer)
        schedules = [vars(config.scheduler) for config in trainer.lr_scheduler_configs]
        self._lengths = [
            (schedule, {name: schedule[name] for name in length_attributes(schedule)})
            for schedule in schedules
        ]
        resumed, model.resumed = model.resumed, None  # which would keep memory for nothing
        if resumed is not None:
            if changed := changed_images(resumed[ABOUT], trainer.datamodule):  # type: ignore[attr-defined]  # set by fit
                rank_zero_only(note)(f"{changed}; what this epoch has left is drawn from these")
            require_same_settings(resumed[ABOUT], model.settings, trainer.ckpt_path)
            # StochasticWeightAveraging has cleared the schedule that it replaces
            model.settings = {
                part: now or resumed[ABOUT].get(part, {}) for part, now in model.settings.items()
            }
            for optimizer, state in zip(
                trainer.optimizers, resumed.get("optimizer_states", ()), strict=False
            ):
                require_fitting_state(optimizer, state, trainer.ckpt_path)

    def on_train_start(self, trainer: Trainer, model: Any) -> None:
        """Gives a resumed schedule the length of this run; logs the settings of a new one."""
        self._log_every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
        self._waiting = [one for one in trainer.callbacks if isinstance(one, WeightAveraging)]  # type: ignore[attr-defined]
        for schedule, lengths in self._lengths:
            schedule.update(lengths)
        _restart_epoch(trainer, model)
        if trainer.ckpt_path is None:
            given = {"arch_args": model.arch_args} if model.arch_args else {}
            settings = {"arch": model.arch, **given, **model.training_summary()}
            log_settings(
                trainer, settings, [name.removeprefix("val/") for name in model.monitors()]
            )

    def on_train_batch_start(
        self, trainer: Trainer, model: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs at least once an epoch, unless ``log_every_n_steps`` is 0."""
        self._batch_idx = batch_idx
        steps = (
            trainer.num_training_batches / trainer.accumulate_grad_batches
        )  # which other callbacks may change
        trainer.log_every_n_steps = math.ceil(min(self._log_every, steps))  # type: ignore[attr-defined]

    def on_before_optimizer_step(self, trainer: Trainer, model: Any, optimizer: Optimizer) -> None:
        """Gives an epoch's last step, which may be of fewer batches than the others, the mean of its gradients.

        Lightning divides by ``accumulate_grad_batches`` all the same (Lightning #19987).
        """
        wanted = trainer.accumulate_grad_batches
        batches = self._batch_idx % wanted + 1
        if batches < wanted:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if parameter.grad is not None:
                    parameter.grad.mul_(wanted / batches)

    def on_train_batch_end(
        self, trainer: Trainer, model: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the mean over the steps since the last time; a log on every step would cost more than the metrics do.

        Averages of weights that have not started stay at the newest weights, where Lightning's stay at the initial ones.
        """
        self._waiting = [
            averaging for averaging in self._waiting if follow_until_averaging(averaging, model)
        ]
        if batch_idx == trainer.current_epoch == 0 and not outputs and model.automatic_optimization:
            raise UserError(
                f"{type(model).__name__}.training_step must return the loss, as in: return losses.mean()"
            )
        if is_logged(trainer) and (results := model.conclude("train")):
            # on the CPU, where a progress bar reads them in each step without waiting for the device
            values = {f"train/{name}": torch.tensor(results[name]) for name in model.train_metrics}
            model.log_dict(values, prog_bar=True)

    def on_train_end(self, trainer: Trainer, model: Any) -> None:
        """Leaves the interval between logs as it was given."""
        trainer.log_every_n_steps = self._log_every  # type: ignore[attr-defined]

    def on_validation_start(self, trainer: Trainer, model: Any) -> None:
        """Has DDP send the first process's statistics of BatchNorm, which it does not within a step of several batches."""
        if isinstance(wrapper := trainer.strategy.model, DistributedDataParallel):
            wrapper.require_forward_param_sync = True
            for buffer in wrapper.buffers() if not wrapper.forward_sync_buffers else ():
                # Lightning's broadcast is of objects; the user has DDP leave this out of each step
                distributed.broadcast(buffer, 0)

    def on_test_start(self, trainer: Trainer, model: Any) -> None:
        """Notes on the terminal that metrics are of several views of each image."""
        if views := getattr(model, "test_time_augmentation", None):
            rank_zero_only(note)(f"test: logits are means over views of each image: {views}")

    def on_validation_epoch_end(self, trainer: Trainer, model: Any) -> None:
        """Logs the metrics of the validation set."""
        self._log(trainer, model, "val")

    def on_test_epoch_end(self, trainer: Trainer, model: Any) -> None:
        """Logs the metrics of the test set."""
        self._log(trainer, model, "test")
        if (step := model.weights_step) is not None:
            model.log(
                "step", float(step), prog_bar=False
            )  # where Lightning's loggers put what is logged

    def _log(self, trainer: Trainer, model: Any, split: Literal["val", "test"]) -> None:
        results = model.conclude(split)
        if results is None or trainer.sanity_checking:
            return
        chosen, coverage = results.pop("thresholds", None), results.pop("coverage", {})
        if split == "val":
            names = model.class_names
            model.thresholds = dict(zip(names, chosen, strict=True)) if chosen else None
            model.coverage = coverage
            model.validated_step = trainer.global_step
        elif model.thresholds:
            results["thresholds"] = list(model.thresholds.values())
        model.results[split] = results
        shown = {
            f"{split}/accuracy",
            *(getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks),
        }
        for metric in model.metrics_of(split):
            name, value = f"{split}/{metric}", results.get(metric)
            if isinstance(value, int | float):
                # every process has the same results, so none is sent; "max" does not round, as a mean could
                same: dict[str, Any] = {
                    "sync_dist": True,
                    "rank_zero_only": True,
                    "reduce_fx": "max",
                }
                model.log(name, float(value), prog_bar=name in shown, **same)


def _training_settings(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """Returns the names and settings of ``optimizer`` and ``lr_scheduler`` before the first step, as plain data.

    A setting that differs between parameter groups is a list; groups without weight decay do not count.
    """
    found: dict[str, dict[str, Any]] = {"optimizer": {}, "lr_scheduler": {}}
    for optimizer in trainer.optimizers[:1]:
        groups = optimizer.param_groups
        decayed = [group for group in groups if group.get("weight_decay")] or groups
        started = [{**group, "lr": group.get("initial_lr", group["lr"])} for group in decayed]
        values = {
            name: _distinct([group.get(name) for group in started])
            for name in started[0]
            if name not in _HOW
        }
        found["optimizer"] = {"name": type(optimizer).__name__, **_plain(values)}
    for config in trainer.lr_scheduler_configs[:1]:
        kind, attributes = type(config.scheduler), vars(config.scheduler)
        names = [
            name
            for name in signature(kind).parameters
            if name in {*attributes} - length_attributes(attributes)
        ]
        values = _plain({name: attributes[name] for name in names})
        found["lr_scheduler"] = {"name": kind.__name__, "interval": config.interval, **values}
    return found


def _restart_epoch(trainer: Trainer, model: LightningModule) -> None:
    """Prepares callbacks for the epoch within which a run is resumed, as Lightning does at the start of an epoch alone.

    What they change of weights and optimizer at the start of an epoch was done before the checkpoint was made, and was
    restored with it.
    """
    if not resumes_within_epoch(trainer):
        return
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    settings = [
        (group, dict(group)) for optimizer in trainer.optimizers for group in optimizer.param_groups
    ]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
        if isinstance(callback, GradientAccumulationScheduler | StochasticWeightAveraging):
            callback.on_train_epoch_start(trainer, model)
    model.load_state_dict(weights)
    for group, before in settings:
        group.update(before)


def _distinct(values: list[Any]) -> Any:
    found = [value for at, value in enumerate(values) if value not in values[:at]]
    return found[0] if len(found) == 1 else found


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps numbers, texts and lists of these, which a checkpoint can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.tolist()
        if isinstance(value, Mapping):  # as milestones are
            return plain(sorted(value.items()))
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    found = {name: plain(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if is_plain(value)}


def require_supported(callbacks: Sequence[Callback], network: nn.Module) -> None:
    """Refuses such callbacks before training; frozen layers of the network are in evaluation mode."""
    averaging = [
        one for one in callbacks if isinstance(one, WeightAveraging | StochasticWeightAveraging)
    ]
    if len(averaging) > 1:
        names = [type(one).__name__ for one in averaging]
        raise UserError(
            f"--trainer.callbacks: {listed(names)} each average the weights, and a run keeps one average; keep the first"
            f" and drop {listed(names[1:])}, such as a recipe like ema.yaml"
        )
    frozen = any(
        isinstance(module, _BATCH_NORMS) and not module.training for module in network.modules()
    )
    for callback in callbacks:
        if (
            type(callback) is BackboneFinetuning
        ):  # BatchNorm's statistics move, too (Lightning #21901, #15062)
            raise UserError(
                "BackboneFinetuning: a resumed run would freeze again what was unfrozen; train the head"
                " first, with --model.freeze backbone, and then the whole network from its checkpoint"
            )
        if isinstance(callback, StochasticWeightAveraging) and frozen:
            raise UserError(
                "StochasticWeightAveraging: it resets the running statistics of BatchNorm, and those of frozen layers would"
                " stay so; freeze nothing, or average with EMAWeightAveraging"
            )
