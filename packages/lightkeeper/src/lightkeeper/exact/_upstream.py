"""All private names of torch and Lightning that the package uses, and why.

Those of Lightning's training loop are used in ``_upstream_loop.py``; commands have their own file.

``tests/test_boundaries.py`` compares the source of each with the version that was read when
it was listed here, so that an upgrade which renames or changes one fails there, by name.
"""

from __future__ import annotations

import multiprocessing.queues
import os
import sys
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from ._errors import ROOM_FOR_WORKERS, UserError

if TYPE_CHECKING:  # none of them is needed for ``--help``
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import WeightAveraging
    from torch import Tensor
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.swa_utils import AveragedModel
    from torchmetrics import Metric

_LIGHTNING = "lightning.pytorch"
_SIGNALS = f"{_LIGHTNING}.trainer.connectors.signal_connector"
_EPOCH_LOOP = f"{_LIGHTNING}.loops.training_epoch_loop"
# attributes that a ModelCheckpoint's state_dict lacks, by the ending of our keys: the step at
# which it saved last, and whether it waits for a validation to save
_LEFT_OUT = {"": "_last_global_step_saved", " waits": "_defer_save_until_validation"}
_LAST_SAVED = "_last_checkpoint_saved"
_RESULTS = f"{_LIGHTNING}.trainer.connectors.logger_connector.result"
_CONNECTOR = f"{_LIGHTNING}.trainer.connectors.logger_connector.logger_connector"

# the first 12 digits of BLAKE2b of the sources in lightning 2.6.6 and torch 2.14.1
PRIVATE_NAMES = {
    # _NoSignals: the handlers run a collective inside a signal handler, which can hang
    f"{_SIGNALS}:_SignalConnector.register_signal_handlers": "3bb3a070ed4d",
    # _ExactEpochLoop: a broadcast in each step for these handlers
    f"{_EPOCH_LOOP}:_TrainingEpochLoop._broadcast_sigterm_tensor": "f669f58bdf01",
    # _ExactResults: where self.log adds a value to those of the epoch
    f"{_RESULTS}:_ResultCollection.update_metrics": "9e7b1a23b65c",
    # _ExactResults, log_end_of_short_epoch of images: what steps have logged for loggers
    f"{_RESULTS}:_ResultCollection.metrics": "1575466adf8b",
    # set_update_count: by which torchmetrics knows that there is a state
    "torchmetrics.metric:Metric.reset": "74d0d5d25578",
    # merge_into, cannot_merge: how torchmetrics puts the states of processes together
    "torchmetrics.metric:Metric._reduce_states": "c56d780986a8",
    # correct_progress: counts the step before a checkpoint twice; the setter restarts the loops
    # below as well
    f"{_EPOCH_LOOP}:_TrainingEpochLoop.reset": "31f50fa57a84",
    f"{_LIGHTNING}.loops.loop:_Loop.restarting": "732faa12cdd9",
    # correct_progress: a value that is logged twice in an epoch's first batch begins anew
    f"{_CONNECTOR}:_LoggerConnector.should_reset_tensors": "12b5cf9959eb",
    # keep_average: which weights the callback loads
    f"{_LIGHTNING}.callbacks.weight_averaging:WeightAveraging.on_load_checkpoint": "65cfb1da8bfd",
    # position_of, reopen_epoch: the loops' counters, in memory and in a checkpoint
    f"{_LIGHTNING}.loops.fit_loop:_FitLoop.update_restart_stage": "a05ece435856",
    # open_loaders: training's, which Lightning opens before it reads a checkpoint
    f"{_LIGHTNING}.loops.fit_loop:_FitLoop.setup_data": "3dd1892b85d3",
    # open_loaders: at which step validation logs a value
    f"{_LIGHTNING}.loops.evaluation_loop:_EvaluationLoop.setup_data": "f99868b36a62",
    # steps_saved: or a batch without a step saves once more
    f"{_LIGHTNING}.callbacks.model_checkpoint:ModelCheckpoint._should_skip_saving_checkpoint": "c5eab31530c7",
    # remember_last_saved: which then saves, unless it knows of a file that it has saved last
    f"{_LIGHTNING}.callbacks.model_checkpoint:ModelCheckpoint.on_train_end": "69d92a3e80f2",
    # training_loaders, validation_loaders, cycles_loaders: those of a loop; its mode, of which it
    # has no public name
    f"{_LIGHTNING}.utilities.combined_loader:CombinedLoader.__init__": "43088910b69d",
    # share_no_buffers: by which DDP knows whether to share them
    "torch.nn.parallel.distributed:DistributedDataParallel.will_sync_module_buffers": "58610e2690e0",
    # follow_until_averaging: the average is the initial weights until its first update
    f"{_LIGHTNING}.callbacks.weight_averaging:WeightAveraging.setup": "d8715bd91f88",
}


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Returns the callbacks of a trainer, which a connector sets, so that its type has none."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def is_accumulating(trainer: Trainer) -> bool:
    """Returns True if the optimizer step that the current batch belongs to is a later batch's."""
    done = trainer.fit_loop.batch_idx + 1
    last = done >= trainer.num_training_batches or trainer.is_last_batch
    return done % trainer.accumulate_grad_batches > 0 and not last


def correct_progress(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Corrects what Lightning counts twice when it resumes within an epoch.

    That is the fetched batch, the step before it, and the batches of a validation before that. It
    would also skip a schedule that watches a metric at the end of the epoch, and take the batch for
    the first one of its epoch.

    Args:
        trainer: A trainer that has resumed.
        checkpoint: The checkpoint that it has resumed from.
    """
    loop = trainer.fit_loop.epoch_loop
    # not by fit_loop's setter, which would set epoch_loop.restarting if max_steps is set
    trainer.fit_loop._restarting = loop.restarting = False
    batches: Any = loop.batch_progress.total  # declared as its base
    batches.ready = batches.processed + 1
    validated = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    loop.val_loop.batch_progress.load_state_dict(validated)
    # or what is logged twice in this batch would drop what was restored of its epoch
    if loop.batch_idx > 0:
        trainer._logger_connector._first_loop_iter = False
    # where a batch may take several steps
    by_hand = not trainer.lightning_module.automatic_optimization
    loop._batches_that_stepped = batches.completed if by_hand else trainer.global_step


def position_of(trainer: Trainer) -> tuple[int, int]:
    """Returns the epoch that training is in, and the number of its batches that are done.

    Not ``current_epoch``, which a resumed run updates only after its loader has begun.

    Raises:
        UserError: The module fetches its batches itself, which Lightning counts otherwise.
    """
    module = trainer.lightning_module  # none before the trainer fits
    if module and "dataloader_iter" in signature(module.training_step).parameters:
        raise UserError("training_step takes dataloader_iter, which hides its place: take a batch")
    return counted(trainer)


def counted(trainer: Trainer) -> tuple[int, int]:
    """Returns the epochs that are done, and the batches that this one has begun."""
    loop = trainer.fit_loop
    epochs: Any = loop.epoch_progress.current  # declared as its base
    return epochs.processed, loop.epoch_loop.batch_progress.current.ready


def training_loaders(trainer: Trainer) -> list[object]:
    """Returns the loaders that a trainer trains on, once they are open."""
    loader = trainer.fit_loop._combined_loader
    return [] if loader is None else loader.flattened


def validation_loaders(trainer: Trainer) -> list[object]:
    """Returns the loaders that a trainer validates on within a fit, once they are open."""
    loader = trainer.fit_loop.epoch_loop.val_loop._combined_loader
    return [] if loader is None else loader.flattened


def cycles_loaders(trainer: Trainer) -> bool:
    """Returns False if training loaders that have ended wait for the longest one, as ``max_size``."""
    loader = trainer.fit_loop._combined_loader
    return loader is None or loader._mode != "max_size"


def reopen_epoch(checkpoint: dict[str, Any]) -> None:
    """Changes a checkpoint's counters from those at the end of training to those between two steps.

    Otherwise a longer run would lose the rest of its epoch, or the next one.
    """
    progress = checkpoint["loops"]["fit_loop"]
    epochs = progress["epoch_progress"]
    batches = progress["epoch_loop.batch_progress"]
    if epochs["current"]["processed"] < max(1, epochs["current"]["started"]):
        return  # they are already, or training has not begun
    batches["total"]["ready"] += 1
    if batches["is_last_batch"]:
        batches.update(current=dict.fromkeys(batches["current"], 0), is_last_batch=False)
    else:
        for counts in (epochs["current"], epochs["total"]):
            counts["processed"] = counts["completed"] = counts["started"] - 1


def average_of(averaging: WeightAveraging) -> AveragedModel | None:
    """Returns the average, which begins with training."""
    return averaging._average_model


def follow_until_averaging(averaging: WeightAveraging, model: LightningModule) -> bool:
    """Gives an average that was not updated yet the newest weights, and returns True if so.

    Lightning validates and saves the average, which until then is the initial weights (#21724).
    """
    average = average_of(averaging)
    if average is None or average.n_averaged:
        return False
    average.module.load_state_dict(model.state_dict())
    return True


def keep_average(checkpoint: dict[str, Any], model: LightningModule) -> None:
    """Lets a test load a checkpoint's average, where the callback would put the raw weights."""
    if "current_model_state" in checkpoint:
        checkpoint["current_model_state"] = checkpoint["state_dict"]  # if it comes after ours
        model.load_state_dict(checkpoint["state_dict"], model.strict_loading)  # if it came before


def share_no_buffers(trainer: Trainer) -> None:
    """Has DDP leave the buffers of processes alone in its next step, as behind a step by hand."""
    wrapper = cast("DistributedDataParallel", trainer.strategy.model)
    wrapper.require_forward_param_sync = False


def set_update_count(metric: Metric, count: int) -> None:
    """Tells a metric how often it was updated, after its state was restored."""
    metric._update_count = count


def merge_into(metric: Metric, state: dict[str, Tensor | list[Tensor]]) -> None:
    """Merges a state into a metric's own by its reductions.

    ``merge_state`` refuses metrics that might need all processes in an update, as it cannot know
    that these have counted by themselves.
    """
    metric._reduce_states(state)


def cannot_merge(metric: Metric) -> bool:
    """Returns True for a metric that stacks the states of processes, which no update expects."""
    return any(
        metric._reductions[name] is None and not isinstance(value, list)
        for name, value in metric.metric_state.items()
    )


def steps_saved(trainer: Trainer) -> dict[str, int]:
    """Returns, of each ModelCheckpoint, the attributes in ``_LEFT_OUT`` as integers."""
    return {
        f"{callback.state_key}{ending}": int(getattr(callback, name))
        for callback in trainer.checkpoint_callbacks
        for ending, name in _LEFT_OUT.items()
        if hasattr(callback, name)
    }


def restore_steps_saved(trainer: Trainer, steps: dict[str, int]) -> None:
    """Restores what :func:`steps_saved` has returned."""
    for callback in trainer.checkpoint_callbacks:
        for ending, name in _LEFT_OUT.items():
            if (key := f"{callback.state_key}{ending}") in steps:
                setattr(callback, name, steps[key])


def remember_last_saved(trainer: Trainer) -> None:
    """Tells each ModelCheckpoint which file it has saved last, once their states are restored.

    One with ``save_last`` would save once more as training ends.
    """
    for callback in trainer.checkpoint_callbacks:
        path = getattr(callback, "last_model_path", "")  # perhaps a link to the newest file
        if path and callback.file_exists(path, trainer):  # type: ignore[attr-defined]
            setattr(callback, _LAST_SAVED, path)


class BatchQueue(multiprocessing.queues.Queue):  # type: ignore[type-arg]
    """A queue of batches that ends its worker where one cannot be sent."""

    # Python calls this hook, which has no public name, in the queue's own thread; its default
    # prints the error and drops the batch, for which the run would wait for ever
    @staticmethod
    def _on_queue_feeder_error(error: BaseException, _batch: object) -> None:
        text = f"a loader worker cannot send a batch ({error}); {ROOM_FOR_WORKERS}"
        sys.stderr.write(f"error: {text}\n")
        os._exit(1)
