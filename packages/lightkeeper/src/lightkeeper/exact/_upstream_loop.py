"""Lightning's training loop, with what it leaves out of checkpoints, and without its signals."""

import math
from collections.abc import Iterable
from copy import deepcopy
from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
)
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from torchmetrics import Metric

from ._checkpoint_io import Checkpoint
from ._loader import seed_other_loaders
from ._metric_states import State, States, cpu_copies, gather, shares_of
from ._randomness import Purpose

Arguments = dict[str, Any]
"""Those of a call of ``self.log``, but for its value."""


def exact_loop(trainer: Trainer) -> "_ExactEpochLoop":
    """Returns a trainer's epoch loop; the first call replaces it by one that saves logged values.

    That call also replaces Lightning's handlers of signals, as
    :class:`~lightkeeper.exact.LastCheckpoint` has its own.
    """
    loop = trainer.fit_loop
    if not isinstance(loop.epoch_loop, _ExactEpochLoop):
        loop.epoch_loop = _ExactEpochLoop(trainer, loop.epoch_loop)
        trainer._signal_connector = _NoSignals(trainer)
    return loop.epoch_loop


def logged_metrics(trainer: Trainer) -> list[str]:
    """Returns the names of the module's metrics that Lightning resets when the epoch ends."""
    return _logged_by(trainer.fit_loop.epoch_loop._results)


def validated_metrics(trainer: Trainer) -> list[str]:
    """Returns the names of those that it resets when a validation ends, and training has not."""
    names = _logged_by(trainer.fit_loop.epoch_loop.val_loop._results)
    return sorted({*names} - {*logged_metrics(trainer)})


def _logged_by(results: _ResultCollection) -> list[str]:
    names = {result.meta.metric_attribute for result in results.values() if not result.is_tensor}
    return sorted(filter(None, names))


def open_loaders(trainer: Trainer) -> None:
    """Has loaders be as they are in a run that was not stopped.

    Those of training have no place if Lightning has opened them before it read the checkpoint, as
    ``configure_optimizers`` makes it do by ``trainer.estimated_stepping_batches``. Those of
    validation are opened if the run had opened them, as callbacks ask for their length: a
    ``ModelCheckpoint`` leaves an epoch's last step to a validation that has batches, and Lightning
    opens none in an epoch without validation, nor checks sanity where a run resumes.
    """
    training = trainer.fit_loop
    states = training._combined_loader_states_to_load
    if training._combined_loader is not None and training._data_fetcher is not None and states:
        training._combined_loader._load_state_dicts(states)
        training._combined_loader_states_to_load = []
        iter(training._data_fetcher)  # with which loaders begin
    loop = exact_loop(trainer)
    had = trainer.num_sanity_val_steps or loop.validated
    if had and trainer.enable_validation and trainer.val_dataloaders is None:
        trainer.validating = True
        loop.val_loop.setup_data()
        trainer.training = True
    # by which validation logs values on_step; Lightning begins anew as a run resumes
    loop.val_loop._seen_batches_per_dataloader.update(loop.validated)
    loop.validated = {}


def count_in_floats(trainer: Trainer) -> None:
    """Makes means exact where processes have different numbers of samples.

    Lightning rounds the mean of these numbers down, as they are integers.
    """
    for result in (trainer._results or {}).values():
        if result.is_tensor and result.meta.is_mean_reduction:
            result.cumulated_batch_size = result.cumulated_batch_size.float()


def uncount_fetched(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Saves the states of loaders before a batch that was fetched and not processed."""
    loop = exact_loop(trainer)
    batches = loop.batch_progress.current
    if batches.ready > batches.completed:
        checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = loop.loader_states


def forget_epoch(trainer: Trainer, logged: Iterable[str]) -> None:
    """Drops what was restored of an epoch that had ended, as of a ``ModelCheckpoint``."""
    exact_loop(trainer)._results.forget()
    parts = dict(trainer.lightning_module.named_modules())
    for name in logged:
        if isinstance(part := parts.get(name), Metric):
            part.reset()


class _NoSignals(_SignalConnector):
    """Leaves signals alone: Lightning's handlers may run a collective that others do not join."""

    def register_signal_handlers(self) -> None:
        """Registers none."""


class _ExactResults(_ResultCollection):
    """Values that training logs, to which those from before the run was stopped are added.

    Attributes:
        earlier: Sums from before the run was stopped, by key; rank 0 has those of ranks that no
            longer exist, too.
        arguments: How ``self.log`` was called for these sums, by key.
        steps: Values of steps from then, which Lightning logs again until there are newer ones.
    """

    def __init__(self) -> None:
        super().__init__(training=True)
        self._completed: list[str] = []
        self.forget()

    def forget(self) -> None:
        """Drops what is from before the run was stopped."""
        self.earlier: list[States] = []
        self.arguments: dict[str, Arguments] = {}
        self.steps: State = {}

    def complete(self, trainer: Trainer) -> None:
        """Logs the values that an epoch logged only before the run was stopped.

        Those of its first batch are an example.
        """
        for key, arguments in self.arguments.items():  # in one order on all processes
            is_here = any(key in states for states in self.earlier)
            is_logged = key in self and not self[key].has_reset
            metric = arguments.get("metric_attribute")  # all processes compute it together
            if is_logged or not (is_here or metric or arguments["sync_dist"]):
                continue
            nothing = {"max": -math.inf, "min": math.inf}.get(arguments["reduce_fx"], 0.0)
            value = torch.tensor(nothing, device=trainer.strategy.root_device)
            if metric:
                value = attrgetter(metric)(trainer.lightning_module)
            self.log(**arguments, value=value, sync_dist_fn=trainer.strategy.reduce, batch_size=0)
            self[key]._forward_cache = None  # no step has logged it
            self._completed.append(key)

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Begins anew; when the epoch has ended, without what was completed in it."""
        super().reset(metrics, fx)
        if fx is None:
            for key in self._completed:  # logged otherwise, Lightning would refuse it
                del self[key]
            self._completed.clear()

    def metrics(self, on_step: bool) -> Any:
        """Returns what is logged now."""
        metrics = super().metrics(on_step)
        if on_step:
            metrics["log"] = self.steps | metrics["log"]
        return metrics

    def update_metrics(self, key: str, value: Any, batch_size: int) -> None:
        """Adds a value, and to the first one of a resumed epoch those of before.

        Not earlier: Lightning makes an empty sum where a value is logged for the first time.
        """
        super().update_metrics(key, value, batch_size)
        result = self[key]
        chosen = result.meta.reduce_fx
        reduce = chosen if chosen in (torch.max, torch.min) else torch.add
        for states in self.earlier:
            for name, before in states.pop(key, {}).items():
                now = getattr(result, name)
                setattr(result, name, reduce(before.to(now.device), now))


class _ExactEpochLoop(_TrainingEpochLoop):
    """Saves and restores the means, sums and extremes of ``self.log(on_epoch=True)``.

    Lightning forgets them, so that the mean over a resumed epoch is one over the rest of it.

    Attributes:
        validated: Batches of all validations before the run was stopped, by their loader.
        loader_states: The states of the training loaders before they yielded the newest batch.
    """

    def __init__(self, trainer: Trainer, other: _TrainingEpochLoop) -> None:
        super().__init__(trainer, other.min_steps, other.max_steps)
        self.val_loop = other.val_loop
        self._results: _ExactResults = _ExactResults()
        self.validated: dict[int, int] = {}
        self.loader_states: list[Checkpoint] = []

    def advance(self, data_fetcher: Any) -> None:
        """Remembers states of loaders, and seeds the transfer's hooks, before it fetches a batch."""
        if (loader := self.trainer.fit_loop._combined_loader) is not None:
            self.loader_states = deepcopy(loader._state_dicts())
        seed_other_loaders(self.trainer, Purpose.FETCH)
        super().advance(data_fetcher)

    def run(self, data_fetcher: Any) -> None:
        """Runs an epoch; what was logged before the run was stopped counts to its end."""
        super().run(data_fetcher)
        self._results.complete(self.trainer)
        self._results.forget()

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Adds the values of this epoch, of each process."""
        logged = {
            key: result
            for key, result in self._results.items()
            if result.meta.on_epoch and not result.has_reset
        }
        states = {
            key: cpu_copies(result.metric_state)
            for key, result in logged.items()
            if result.is_tensor
        }
        # saved sums that were not logged again yet, then those of lost ranks
        waiting, *of_others = self._results.earlier or [{}]
        share = [waiting | states, *filter(None, of_others)]
        # all is empty before loaders are opened, unless it was restored
        is_open = self.trainer.fit_loop._combined_loader is not None
        shares = gather(share) if is_open or self._results.arguments else [share]
        results = [states for share in shares for states in share]
        arguments = self._results.arguments | {
            key: _arguments_of(result.meta) for key, result in logged.items()
        }
        steps = cpu_copies(self._results.metrics(on_step=True)["log"])
        validated = {**self.validated, **self.val_loop._seen_batches_per_dataloader}
        if self.val_loop._should_reload_val_dl:  # with new loaders, it counts anew
            validated = dict.fromkeys(validated, 0)
        return {
            **super().on_save_checkpoint(),
            "results": results,
            "arguments": arguments,
            "steps": steps,
            "validated": validated,
        }

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Restores the values of this epoch; the first process gets those of lost ones."""
        super().on_load_checkpoint(state_dict)
        self._results.earlier = shares_of(self.trainer, state_dict.get("results", []))
        self._results.arguments = state_dict.get("arguments", {})
        self._results.steps = state_dict.get("steps", {})
        self.validated = state_dict.get("validated", {})
        self.val_loop._has_run = False  # of an earlier fit, or a resumed epoch's last batch is lost

    def _broadcast_sigterm_tensor(self) -> None:
        """Sends nothing: no handler of Lightning's waits for it."""


def _arguments_of(meta: _Metadata) -> Arguments:
    """Returns the arguments of a value's log, as plain data."""
    flags = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph")
    names = ("fx", "name", "metric_attribute", *flags)
    return {name: getattr(meta, name) for name in names} | {
        "reduce_fx": meta.reduce_fx.__name__,
        "sync_dist": meta.sync.should,
        "rank_zero_only": meta.sync.rank_zero_only,
    }
