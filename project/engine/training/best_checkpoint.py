"""The best checkpoint: the metric that chooses it, the callback that keeps it, and its test."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from ..errors import UserError, listed
from ..run.checkpoint import ABOUT, About, read_checkpoint
from ..run.progress import note
from .opening import restore_weights

if TYPE_CHECKING:
    from .module import ClassifierModule

_PLACES = ("best_model_path", "kth_best_model_path", "last_model_path")


class Monitor(NamedTuple):
    """The metric that a run is judged by, and whether ``min`` or ``max`` of it is best."""

    monitor: str
    mode: str


def chosen_monitor(metric: str, mode: str | None, modes: Mapping[str, str | None]) -> Monitor:
    """Returns the metric and the mode that the best checkpoint is chosen by.

    Args:
        metric: The metric that ``--monitor`` names.
        mode: The mode that ``--mode`` names; by default the metric's own.
        modes: The mode of each metric of the validation set, None if it does not say.

    Raises:
        UserError: Nobody says the mode.
    """
    mode = mode or modes.get(metric)
    if mode is None:
        raise UserError(
            f"--monitor {metric} needs --mode min or --mode max, as one that your own code logs"
            f" does; the model has {listed(modes)}"
        )
    return Monitor(metric, mode)


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``: a loss that is not finite makes none, and the folder may be moved.

    Lightning's looks at the monitored metric alone, and takes paths from a checkpoint as they are.
    """

    def __init__(self, folder: Path, monitor: str = "val/accuracy", mode: str = "max") -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Returns True if the metrics are the best so far."""
        loss = trainer.callback_metrics.get("val/loss")
        if loss is not None and not loss.isfinite():
            rank_zero_only(note)(
                f"the validation loss is {loss.item():.4g} after step {trainer.global_step}:"
                " no candidate for best.ckpt"
            )
            return False
        return super().check_monitor_top_k(trainer, current)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state, with its paths moved to where the folder is now.

        It comes from a file, so of a path nothing but the last name counts: the callback removes
        what it names.
        """
        places = {name: self._moved(state_dict[name]) for name in _PLACES}
        scores = {self._moved(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict(
            {**state_dict, **places, "dirpath": str(self.dirpath), "best_k_models": scores}
        )
        self.current_score = state_dict["current_score"]  # which Lightning saves alone

    def _moved(self, path: object) -> str:
        """Returns what a path would be in this callback's folder; nothing for no checkpoint."""
        name = str(path).rpartition("/")[-1]
        return str(Path(str(self.dirpath)) / name) if name.endswith(self.FILE_EXTENSION) else ""


def selection(trainer: Trainer) -> dict[str, str] | None:
    """Returns how ``best.ckpt`` is chosen; None if no callback does so."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, BestCheckpoint):
            return {"monitor": str(callback.monitor), "mode": callback.mode}
    return None


def evaluate_best(
    trainer: Trainer, model: "ClassifierModule", data: LightningDataModule, path: str
) -> About:
    """Tests the weights of a checkpoint, and returns what it says about itself.

    Checks that no callback has changed the weights. Lightning's ``ckpt_path`` will not do: callbacks
    would take part, and those that average weights put the raw ones back.
    """
    checkpoint = read_checkpoint(path)
    weights = checkpoint["state_dict"]
    restore_weights(model, weights, path)
    about: About = checkpoint[ABOUT]
    model.thresholds = about.get("thresholds")
    # where Lightning has logged their validation
    model.weights_step = checkpoint["global_step"] - 1
    trainer.test(model, datamodule=data, verbose=False)
    for name, value in model.state_dict().items():
        if not torch.equal(value.cpu(), weights[name]):
            raise UserError(
                f"a callback changed the weights before the test ({name}): these are no metrics of"
                f" '{path}'; leave the callback out and measure it with"
                f" python -m {__package__.split('.')[0]}.evaluate {shlex.quote(path)}"
            )
    return about
