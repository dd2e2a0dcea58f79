"""A run's folder: where its files are, and whether the run is new, unfinished or finished."""

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from project.errors import UserError


class RunFolder:
    """``runs/<name>/`` with everything that a run leaves behind.

    Args:
        root: The folder of all runs.
        name: The run's name.
    """

    def __init__(self, root: str | Path, name: str) -> None:
        if name in ("", "..") or Path(name).name != name:
            raise UserError(f"--name '{name}' must be the name of one folder, without '/'")
        self.name, self.path = name, Path(root) / name
        self.config, self.metrics = self.path / "config.yaml", self.path / "metrics.json"
        self.checkpoints = self.path / "checkpoints"
        self.best, self.last = self.checkpoints / "best.ckpt", self.checkpoints / "last.ckpt"

    def require_unfinished(self) -> None:
        """Protects a finished run.

        Raises:
            UserError: The run has its final figures.
        """
        if self.metrics.exists():
            raise UserError(
                f"the run '{self.path}' is finished; choose another --name, or remove that folder to repeat it"
            )

    def create(self, needed_bytes: int) -> None:
        """Makes the folder and sees to it that checkpoints will fit.

        Args:
            needed_bytes: What the checkpoints will take at least.

        Raises:
            UserError: The folder cannot be written to, or the disk is full.
        """
        probe = self.checkpoints / ".writable"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"the run folder '{self.path}' cannot be written ({error.strerror}); choose another place with"
                " --trainer.default_root_dir"
            ) from error
        free = shutil.disk_usage(self.path).free
        if free < needed_bytes:
            raise UserError(
                f"'{self.path}' has {free / 1e6:.0f} MB left, but checkpoints take {needed_bytes / 1e6:.0f} MB; make"
                " room or choose another place with --trainer.default_root_dir"
            )

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        """Writes the final figures, the mark of a finished run."""
        partial = self.metrics.with_suffix(".partial")
        partial.write_text(json.dumps(metrics, indent=2) + "\n")
        partial.rename(self.metrics)


def derived_name(data: str, arch: str, now: datetime) -> str:
    """A name that tells data, model and time apart, as in ``flowers-resnet34-20250131-142501``."""
    return f"{data.removesuffix('DataModule').lower()}-{arch}-{now:%Y%m%d-%H%M%S}"
