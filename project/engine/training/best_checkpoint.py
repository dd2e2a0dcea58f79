"""Keeping checkpoints in a run's folder."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

_PLACES = ("best_model_path", "kth_best_model_path", "last_model_path")


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
        """Whether the metrics are worth keeping."""
        loss = trainer.callback_metrics.get("val/loss")
        return (loss is None or bool(loss.isfinite())) and super().check_monitor_top_k(trainer, current)

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
        """What a path would be in this callback's folder; nothing where it is no checkpoint."""
        name = str(path).rpartition("/")[-1]
        return str(Path(str(self.dirpath)) / name) if name.endswith(self.FILE_EXTENSION) else ""
