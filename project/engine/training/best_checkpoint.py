"""Keeps ``best.ckpt``: the metric that it is chosen by, the callback that writes it, and loading it for the test."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import Tensor

from ..errors import UserError
from ..run.checkpoint import read_checkpoint
from ..run.progress import note
from .fitting import require_fitting_weights

_PLACES = ("best_model_path", "kth_best_model_path", "last_model_path")


class Monitor(NamedTuple):
    """The metric that a run is judged by, and whether ``min`` or ``max`` of it is best."""

    monitor: str
    mode: str


def chosen_monitor(metric: str, mode: str | None, known: dict[str, str | None]) -> Monitor:
    """Finds what the best checkpoint is chosen by.

    Args:
        metric: The value of ``--monitor``. A model or callback of the user's own may log others than the known ones.
        mode: The value of ``--mode``, if it is given.
        known: The mode of each known metric of the validation set, None where a metric does not say what is better.

    Raises:
        UserError: The mode must be given.
    """
    mode = mode or known.get(metric)
    if mode is None:
        missing = "" if metric in known else f" is none of {', '.join(known)}, and"
        raise UserError(f"--monitor {metric}{missing} does not say what is better; give --mode min or --mode max")
    return Monitor(metric, mode)


def watch_validation(callbacks: list[Callback], specs: Sequence[Any], monitor: Monitor) -> None:
    """Replaces each ``EarlyStopping`` by one that watches what the run is judged by and looks after each validation.

    One with a metric of its own keeps it. Lightning's looks at the end of each training epoch, and fails where
    ``--trainer.max_steps`` ends the first one before a validation.

    Args:
        callbacks: The user's.
        specs: What the command line says of each.
        monitor: What to watch.
    """
    for at, (callback, spec) in enumerate(zip(callbacks, specs, strict=True)):
        if isinstance(callback, EarlyStopping):
            options = spec.init_args.as_dict()
            if callback.monitor is None:
                options.update(monitor._asdict())
            if options["monitor"].startswith("val/") and options.get("check_on_train_epoch_end") is None:
                options["check_on_train_epoch_end"] = False
            callbacks[at] = type(callback)(**options)


class BestCheckpoint(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint``, but no loss that is not finite makes a best one, and the folder may be moved.

    Args:
        folder: Where ``best.ckpt`` goes.
        monitor: The metric that it is chosen by.
        mode: ``min`` where less of it is better, ``max`` where more is.
    """

    def __init__(self, folder: Path, monitor: str = "val/accuracy", mode: str = "max") -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Returns True if the metrics are the best so far."""
        loss = trainer.callback_metrics.get("val/loss")
        if loss is not None and not loss.isfinite():
            if trainer.is_global_zero:
                at = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}"
                note(f"the validation loss is {loss.item():.4g} at {at}: no candidate for best.ckpt")
            return False
        return super().check_monitor_top_k(trainer, current)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state with the places that it names put where the folder is now.

        It comes from a file, so of a path nothing but the last name counts: the callback removes what it names.
        """
        scores = {self._own(path): score for path, score in state_dict["best_k_models"].items()}
        places = {name: self._own(state_dict[name]) for name in _PLACES}
        known = places["kth_best_model_path"] in scores and "" not in scores
        kept = {"dirpath": str(self.dirpath), "best_k_models": scores if known else {}}
        super().load_state_dict({**state_dict, **places, **kept})
        if isinstance(score := state_dict.get("current_score"), Tensor):  # Lightning leaves it out
            self.current_score = score

    def _own(self, path: Any) -> str:
        """Returns what a path would be in this callback's folder; nothing where it is no checkpoint."""
        name = str(path).rpartition("/")[-1]
        return str(Path(str(self.dirpath)) / name) if name.endswith(self.FILE_EXTENSION) else ""


def load_best(model: LightningModule, path: str) -> dict[str, Any]:
    """Loads the weights of a checkpoint for the test, and returns all that it holds.

    Raises:
        UserError: The weights do not fit the network, as in a file that was changed.
    """
    checkpoint = read_checkpoint(path)
    require_fitting_weights(model.state_dict(), checkpoint["state_dict"], path)
    model.load_state_dict(checkpoint["state_dict"])
    model.weights_step = checkpoint["global_step"]
    return checkpoint


def require_unchanged(model: LightningModule, weights: dict[str, Tensor], path: str) -> None:
    """Checks that the weights that were tested are those of the checkpoint.

    Raises:
        UserError: A callback has changed them, as some that average weights do.
    """
    for name, value in model.state_dict().items():
        if not torch.equal(value.cpu(), weights[name]):
            raise UserError(
                f"a callback changed the weights before the test ({name}): these are no metrics of '{path}'; leave the"
                f" callback out and measure it with python -m {__package__.split('.')[0]}.evaluate {shlex.quote(path)}"
            )
