"""Keeping checkpoints in a run's folder."""

from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint


class RunCheckpoint(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint``, but it still knows the best figure when the run's folder was moved."""

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
