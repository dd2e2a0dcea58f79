"""Corrections of what Lightning does otherwise in a resumed run, or on several processes."""

from collections.abc import Sequence
from itertools import chain

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, Timer, WeightAveraging
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchmetrics import Metric

from ._checkpoint_io import Checkpoint
from ._loader import seed_after_validation, seed_other_loaders
from ._metric_states import join_retrieved
from ._own_tensors import bytes_of, has_own_buffers
from ._randomness import Purpose, derived_seed, seed_generators
from ._upstream import (
    average_of,
    callbacks_of,
    follow_until_averaging,
    is_accumulating,
    keep_average,
)
from ._upstream_loop import count_in_floats

_METRIC_DTYPES = {HalfPrecision: torch.float32, DoublePrecision: torch.float64}


def convert_to_double(trainer: Trainer, module: LightningModule) -> None:
    """Converts a module to double precision before weights are loaded, not after, if asked."""
    if isinstance(trainer.precision_plugin, DoublePrecision):
        trainer.precision_plugin.convert_module(module)


def restore_numbers(trainer: Trainer, saved: Sequence[Checkpoint]) -> None:
    """Restores optimizer states in their saved types: torch casts them to those of the weights."""
    for optimizer, states in zip(trainer.optimizers, saved, strict=False):
        for place, parameter in enumerate(p for g in optimizer.param_groups for p in g["params"]):
            now = optimizer.state.get(parameter, {})
            # ZeroRedundancyOptimizer sets those of other processes to None
            for name, value in (states["state"].get(place) or {}).items():
                if isinstance(value, Tensor) and value.dtype != now[name].dtype:
                    now[name] = value.to(now[name].device)


def set_metric_dtypes(trainer: Trainer, module: LightningModule) -> None:
    """Has metrics sum up in float32 with weights of 16 bits, and in float64 with those of 64.

    Lightning casts them to 16 bits, in which a sum of ones ends at 256, not to 64, and once more in
    the step that logs one first. Metrics with a network are left alone. Their own ``dtype`` does
    not tell: a move to a device makes it float32, whatever their states are.
    """
    dtype = _METRIC_DTYPES.get(type(trainer.precision_plugin))
    for part in module.modules() if dtype else ():
        if isinstance(part, Metric) and not [*part.parameters()] and not _keeps_lists(part):
            part.to(dtype)


def _keeps_lists(metric: Metric) -> bool:
    """Returns True if a metric keeps what it was given, and no sum; to cast that would take long."""
    return all(isinstance(state, list) for state in metric.metric_state.values())


def _timers(trainer: Trainer) -> list[Timer]:
    return [part for part in callbacks_of(trainer) if isinstance(part, Timer)]


def has_timed_out(trainer: Trainer) -> bool:
    """Returns True if the time limit of a Timer has come."""
    left = [timer.time_remaining() for timer in _timers(trainer)]
    return any(seconds is not None and seconds <= 0 for seconds in left)


def has_time_left(trainer: Trainer, checkpoint: Checkpoint) -> bool:
    """Returns True if all limits are longer than the time that a checkpoint has taken.

    False if an ``EarlyStopping`` has ended the run, too.
    """
    states = checkpoint.get("callbacks", {})
    if any(isinstance(state, dict) and state.get("stopped_epoch") for state in states.values()):
        return False
    for timer in _timers(trainer):  # which have not loaded their states yet
        limit = timer.time_remaining()
        taken = states.get(timer.state_key, {}).get("time_elapsed", {}).get("train", 0.0)
        if limit is not None and limit <= taken:
            return False
    return True


def _averagings(trainer: Trainer) -> list[WeightAveraging]:
    return [part for part in callbacks_of(trainer) if isinstance(part, WeightAveraging)]


class ExactTraining(Callback):
    """Trains and validates as the documentation says where Lightning does otherwise.

    * An epoch's last step takes the mean of its gradients, also if it has fewer batches than
      ``accumulate_grad_batches``, by which Lightning divides all the same (Lightning #19987).
    * A :class:`~lightning.pytorch.callbacks.WeightAveraging` that has not started averaging holds
      the newest weights, where Lightning's holds the initial ones (Lightning #21724).
    * A test of a checkpoint on the trainer that has fitted loads its average, where Lightning's
      loads the weights of training.
    * A run that had ended before it resumes has its average, too.
    * Metrics sum up in float32 with ``bf16-true`` and ``16-true``, and in float64 with ``64-true``.
    * All processes validate the first one's buffers, such as BatchNorm's statistics, which DDP does
      not synchronise after the last step. Where it shares none, each goes on training with its own.
    * Retrieval metrics may have seen more batches on some processes than on others.
    * Steps draw random numbers by (seed, epoch, batch) with other loaders, too, and hooks between a
      validation and the next step.
    * A :class:`~lightning.pytorch.callbacks.GradientAccumulationScheduler` counts from the start in
      an epoch within which a run resumes.
    """

    _began = False
    _own_buffers: Sequence[tuple[Tensor, Tensor, Tensor]] = ()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Waits for the training to begin, which it does not if it had ended."""
        self._began = False
        self._rng_state = torch.default_generator.get_state()
        set_metric_dtypes(trainer, pl_module)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        """Loads the average, unless training goes on."""
        if not trainer.training:
            keep_average(checkpoint, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the average if training had ended already, as ``on_train_end`` was not called.

        Seeds the generators by their state before the fit, so that what a script draws afterwards,
        such as weights of a new layer, is the same whether or not the fit was resumed.
        """
        for part in _averagings(trainer) if not self._began else ():
            part.on_train_end(trainer, pl_module)
        seed = derived_seed(Purpose.AFTER_FIT, *self._rng_state.tolist())
        seed_generators(seed, trainer.strategy.root_device)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the callbacks that it corrects."""
        self._began = True
        self._waiting = _averagings(trainer)
        self._schedulers = [
            part
            for part in callbacks_of(trainer)
            if isinstance(part, GradientAccumulationScheduler)
        ]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Remembers the batch, which the next hook is not told; sets how many make a step."""
        self._batch_idx = batch_idx
        seed_other_loaders(trainer, Purpose.STEP)  # once more: it may have drawn as it began
        for scheduler in self._schedulers:  # not before all callbacks have begun: one checks it
            scheduler.on_train_epoch_start(trainer)
        self._schedulers = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Gives an epoch's last step, which may have fewer batches, the mean of its gradients."""
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
        """Lets averages that have not started follow the weights."""
        set_metric_dtypes(trainer, pl_module)
        self._waiting = [part for part in self._waiting if follow_until_averaging(part, pl_module)]

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives all processes the first one's buffers, and those of its averages."""
        set_metric_dtypes(trainer, pl_module)
        if isinstance(wrapper := trainer.strategy.model, DistributedDataParallel):
            averages = filter(None, map(average_of, _averagings(trainer)))
            shared = [*wrapper.buffers(), *chain(*(part.buffers() for part in averages))]
            keeps_own = has_own_buffers(trainer) or is_accumulating(trainer)
            own = [buffer.clone() for buffer in shared] if keeps_own else []
            for buffer in shared:
                distributed.broadcast(buffer, 0)  # Lightning's broadcast is of objects
            self._own_buffers = [(x, x.clone(), y) for x, y in zip(shared, own, strict=False)]

    on_test_start = on_validation_start

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seeds what is drawn from here on: steps of a validation draw the same each time."""
        if trainer.state.fn == "fit":
            seed_after_validation(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives each process that trains with buffers of its own these back."""
        for buffer, given, own in self._own_buffers:
            # unless the validation itself has changed it
            if torch.equal(bytes_of(buffer), bytes_of(given)):
                buffer.copy_(own)
        self._own_buffers = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps the types of metrics, and joins lists before Lightning computes with them."""
        set_metric_dtypes(trainer, pl_module)
        count_in_floats(trainer)
        batches = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
        if trainer.sanity_checking:
            batches = trainer.num_sanity_val_batches
        if batch_idx + 2 >= batches[dataloader_idx]:  # some processes may have one less
            join_retrieved(pl_module)

    on_test_batch_end = on_validation_batch_end

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Joins lists, of which a process has more that has taken over those of another."""
        join_retrieved(pl_module)
