"""Writing checkpoints so that each appears whole or not at all."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from .checkpoint import read_checkpoint
from .whole_file import whole_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes whole files, where Lightning moves a temporary one, which across file systems is not atomic, without fsync.

    Only checkpoints in the run's folder are ever removed, and what this object wrote: the states of callbacks, which name
    what they would remove, come from a file too.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._written: set[Path] = set()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes the file, or leaves what was there before."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with whole_file(path) as partial, open(partial, "wb") as file:
                torch.save(checkpoint, file)
        except BaseException as error:
            cause = error.__context__ or error  # torch raises one of its own on top
            if isinstance(cause, OSError) and cause.filename is None:
                cause.filename = str(path)  # writing, unlike opening, does not say where
            raise
        self._written.add(path.resolve())

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Reads a checkpoint onto the CPU without executing anything it says."""
        return read_checkpoint(path)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint of the run; does nothing where the path is no such file, or leads out of the folder."""
        target = Path(path).resolve()
        inside = self._folder is not None and target.is_relative_to(self._folder.resolve())
        if (inside or target in self._written) and target.suffix == ".ckpt" and target.is_file():
            Path(path).unlink()


def with_atomic_writes(plugins: Any, folder: Path) -> list[Any]:
    """Adds :class:`AtomicCheckpointIO` to the user's plugins: alone, or within one that wraps another."""
    mine, given = AtomicCheckpointIO(folder), plugins if isinstance(plugins, list) else [plugins] if plugins else []
    for plugin in given:
        if getattr(plugin, "checkpoint_io", mine) is None:  # it wraps another
            plugin.checkpoint_io = mine
            return given
    return [mine, *given]  # Lightning refuses another CheckpointIO beside it


def hard_link(path: Path, name: str) -> None:
    """Makes a hard link to a file in its folder, in place of what had that name; does nothing where there is no file.

    Both names are whole files at every moment. Where the file system has no hard links, the file is renamed.
    """
    if path.exists():
        linked = path.with_name(f".{name}.partial")
        linked.unlink(missing_ok=True)
        try:
            linked.hardlink_to(path)
        except OSError:  # some file systems have no hard links
            path.replace(path.with_name(name))
        else:
            linked.replace(path.with_name(name))
