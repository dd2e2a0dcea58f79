"""The best checkpoint of a run, by a metric of its validations."""

import math
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torchmetrics import Metric

from ..exact._checkpoint_io import Checkpoint
from ..exact._errors import UserError, note
from ._checkpoint import read_checkpoint


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``, in a folder that may be moved.

    Of equal scores, as all epochs may have on few images, that of the smallest ``val/loss`` is
    the best. Lightning's keeps the first, and takes paths from a checkpoint as they are.
    """

    best_loss = -math.inf
    """The validation loss of ``best.ckpt``; without one, nothing equal is better."""

    def __init__(self, folder: Path, monitor: str = "val/accuracy", mode: str = "max") -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Returns True if a score is the best so far, and remembers its loss."""
        is_better = super().check_monitor_top_k(trainer, current)
        loss = float(trainer.callback_metrics.get("val/loss", -math.inf))
        if not is_better:
            is_equal = current is not None and bool(current == self.best_model_score)
            is_better = trainer.strategy.reduce_boolean_decision(is_equal and loss < self.best_loss)
        if is_better:
            self.best_loss = loss
        return is_better

    def state_dict(self) -> Checkpoint:
        """Returns what Lightning's keeps, and the loss."""
        return super().state_dict() | {"best_loss": self.best_loss}

    def load_state_dict(self, state_dict: Checkpoint) -> None:
        """Restores the best score; its checkpoint is in this folder, wherever it was saved.

        Paths in the file do not count: the callback removes what they name. The score of a
        checkpoint that cannot be read any more does not count, either.
        """
        score = state_dict.get("best_model_score")
        if not isinstance(score, Tensor):  # as before the first validation
            return
        path = str(Path(str(self.dirpath)) / f"best{self.FILE_EXTENSION}")
        try:
            read_checkpoint(path)
        except UserError:
            text = f"'{path}' is lost or damaged; the best validation from here on writes it"
            rank_zero_only(note)(text)
            return
        self.best_model_score = self.kth_value = score
        self.best_model_path = self.kth_best_model_path = path
        self.best_k_models = {path: score}
        self.best_loss = state_dict.get("best_loss", self.best_loss)


def best_checkpoint(trainer: Trainer) -> BestCheckpoint | None:
    """Returns the callback that keeps ``best.ckpt``; None if no callback does so."""
    callbacks = trainer.checkpoint_callbacks
    return next((part for part in callbacks if isinstance(part, BestCheckpoint)), None)


def default_mode(model: object, monitor: str) -> str | None:
    """Returns the ``mode`` of a validation metric, ``min`` or ``max``; None if it is unknown."""
    name = monitor.removeprefix("val/").partition("/dataloader_idx_")[0]
    if name == "loss":
        return "min"
    metrics: Mapping[str, Metric] = getattr(model, "val_metrics", {})
    higher_is_better = metrics[name].higher_is_better if name in metrics else None
    return {True: "max", False: "min", None: None}[higher_is_better]
