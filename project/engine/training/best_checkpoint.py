"""The best checkpoint: the metric that it is chosen by, the callback that keeps it, and its test."""

import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from ..errors import UserError, listed
from ..run.checkpoint import ABOUT, read_checkpoint
from ..run.progress import note
from .fitting import require_fitting_weights

_PLACES = ("best_model_path", "kth_best_model_path", "last_model_path")


class Monitor(NamedTuple):
    """The metric that a run is judged by, and whether ``min`` or ``max`` of it is best."""

    monitor: str
    mode: str


def chosen_monitor(metric: str, mode: str | None, known: dict[str, str | None]) -> Monitor:
    """Finds the metric and the mode that the best checkpoint is chosen by, from ``--monitor`` and ``--mode``.

    ``known`` has the mode of each known metric of the validation set, None where a metric does not say what is better.
    """
    if metric not in known:
        near = get_close_matches(metric, known, 1)
        advice = f"did you mean {near[0]}?" if near else f"it has {listed(known)}."
        problem = f"--monitor: the model has no metric '{metric}'; {advice}"
        if mode is None:
            raise UserError(
                f"{problem} For one that your own code logs, give --mode min or --mode max"
            )
        rank_zero_only(note)(f"{problem} Your own code must log it")
    mode = mode or known[metric]
    if mode is None:
        raise UserError(
            f"--monitor: {metric} does not say what is better; give --mode min or --mode max"
        )
    return Monitor(metric, mode)


def watch_validation(callbacks: list[Callback], specs: Sequence[Any], monitor: Monitor) -> None:
    """Replaces each ``EarlyStopping`` by one that watches the run's monitor, or its own, after each validation.

    Lightning's looks at the end of each training epoch, and fails where ``--trainer.max_steps`` ends the first one
    before a validation. ``specs`` are the command line's words for the callbacks.
    """
    for at, (callback, spec) in enumerate(zip(callbacks, specs, strict=True)):
        if isinstance(callback, EarlyStopping):
            options = spec.init_args.as_dict()
            if callback.monitor is None:
                options.update(monitor._asdict())
            if (
                options["monitor"].startswith("val/")
                and options.get("check_on_train_epoch_end") is None
            ):
                options["check_on_train_epoch_end"] = False
            callbacks[at] = type(callback)(**options)


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``: a loss that is not finite makes none, and the folder may be moved."""

    def __init__(self, folder: Path, monitor: str = "val/accuracy", mode: str = "max") -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Returns True if the metrics are the best so far."""
        loss = trainer.callback_metrics.get("val/loss")
        if loss is not None and not loss.isfinite():
            at = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}"
            rank_zero_only(note)(
                f"the validation loss is {loss.item():.4g} at {at}: no candidate for best.ckpt"
            )
            return False
        return super().check_monitor_top_k(trainer, current)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state, with its paths moved to where the folder is now.

        It comes from a file, so of a path nothing but the last name counts: the callback removes what it names.
        """
        places = {name: self._own(state_dict[name]) for name in _PLACES}
        scores = {self._own(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict(
            {**state_dict, **places, "dirpath": str(self.dirpath), "best_k_models": scores}
        )

    def _own(self, path: Any) -> str:
        """Returns what a path would be in this callback's folder; nothing where it is no checkpoint."""
        name = str(path).rpartition("/")[-1]
        return str(Path(str(self.dirpath)) / name) if name.endswith(self.FILE_EXTENSION) else ""


def selection(trainer: Trainer) -> dict[str, str] | None:
    """Returns how ``best.ckpt`` is chosen; None where no callback of the trainer does so."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, BestCheckpoint):
            return {"monitor": str(callback.monitor), "mode": callback.mode}
    return None


def evaluate_best(trainer: Trainer, model: LightningModule, data: Any, path: str) -> None:
    """Tests the weights of a checkpoint, and checks afterwards that no callback has changed them.

    Not by Lightning's ``ckpt_path``: callbacks would take part, and those that average weights put the raw ones back.
    """
    checkpoint = read_checkpoint(path)
    weights = checkpoint["state_dict"]
    require_fitting_weights(model.state_dict(), weights, path)
    model.load_state_dict(weights)
    model.thresholds = checkpoint[ABOUT].get("thresholds")
    model.weights_step = (
        checkpoint["global_step"] - 1
    )  # where Lightning has logged their validation
    trainer.test(model, datamodule=data, verbose=False)
    for name, value in model.state_dict().items():
        if not torch.equal(value.cpu(), weights[name]):
            raise UserError(
                f"a callback changed the weights before the test ({name}): these are no metrics of '{path}'; leave the"
                f" callback out and measure it with python -m {__package__.split('.')[0]}.evaluate {shlex.quote(path)}"
            )
