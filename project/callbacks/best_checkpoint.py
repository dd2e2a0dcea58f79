"""Keeping checkpoints in a run's folder."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor


class BestCheckpoint(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint``, but no loss that is not finite makes a best one, and the folder may be moved."""

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Whether the metrics are worth keeping."""
        loss = trainer.callback_metrics.get("val/loss")
        return (loss is None or bool(loss.isfinite())) and super().check_monitor_top_k(trainer, current)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state with the places that it names put where the folder is now."""
        before, now = str(state_dict["dirpath"]), str(self.dirpath)
        moved = {key: _moved(value, before, now) for key, value in state_dict.items()}
        scores = state_dict["best_k_models"].items()
        super().load_state_dict(
            {**moved, "best_k_models": {_moved(path, before, now): score for path, score in scores}}
        )


def _moved(value: Any, before: str, now: str) -> Any:
    return now + value.removeprefix(before) if isinstance(value, str) and value.startswith(before) else value
