"""Corrections of what Lightning does otherwise in a resumed run, or on several processes."""

from collections.abc import Sequence
from itertools import chain

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, WeightAveraging
from lightning.pytorch.plugins import DoublePrecision
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ._upstream import average_of, callbacks_of, follow_until_averaging


def convert_to_double(trainer: Trainer, module: LightningModule) -> None:
    """Converts a module to double precision before weights are loaded, not after, if asked."""
    if isinstance(trainer.precision_plugin, DoublePrecision):
        trainer.precision_plugin.convert_module(module)


class ExactTraining(Callback):
    """Trains and validates as the documentation says where Lightning does otherwise.

    * An epoch's last step takes the mean of its gradients, also if it has fewer batches than
      ``accumulate_grad_batches``, by which Lightning divides all the same (Lightning #19987).
    * A :class:`~lightning.pytorch.callbacks.WeightAveraging` that has not started averaging holds
      the newest weights, where Lightning's holds the initial ones (Lightning #21724).
    * A run that had ended before it resumes has its average, too.
    * All processes validate the first one's buffers, such as BatchNorm's statistics, which DDP does
      not synchronise after the last step.
    * A :class:`~lightning.pytorch.callbacks.GradientAccumulationScheduler` counts from the start in
      an epoch within which a run resumes.
    """

    _averages: Sequence[WeightAveraging] = ()
    _began = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Waits for the training to begin, which it does not if it had ended."""
        self._began = False

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends a training that had ended, as Lightning does the first time."""
        for part in callbacks_of(trainer):
            if isinstance(part, WeightAveraging) and not self._began:
                part.on_train_end(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the callbacks that it corrects."""
        self._began = True
        callbacks = callbacks_of(trainer)
        self._averages = [part for part in callbacks if isinstance(part, WeightAveraging)]
        self._waiting = self._averages
        self._schedulers = [
            part for part in callbacks if isinstance(part, GradientAccumulationScheduler)
        ]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Remembers the batch, which the next hook is not told; sets how many make a step."""
        self._batch_idx = batch_idx
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
        self._waiting = [part for part in self._waiting if follow_until_averaging(part, pl_module)]

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives all processes the first one's buffers, and those of its averages."""
        if isinstance(wrapper := trainer.strategy.model, DistributedDataParallel):
            averages = filter(None, map(average_of, self._averages))
            for buffer in (*wrapper.buffers(), *chain(*(part.buffers() for part in averages))):
                distributed.broadcast(buffer, 0)  # Lightning's broadcast is of objects

    on_test_start = on_validation_start
