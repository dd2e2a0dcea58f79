"""Checkpoints that are written whole or not at all, and read without running what they say."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ._errors import UserError, listed, note, require
from ._files import whole_file
from ._plain import MisfitError, plain, split_plain
from ._reading import read_file

OPTIONS = "hyper_parameters"
_HYPERPARAMETERS = (OPTIONS, "datamodule_hyper_parameters")
Checkpoint = dict[str, Any]
"""The contents of a checkpoint."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes whole files of plain data, and reads them safely.

    Lightning's moves a temporary file, without fsync and perhaps between disks, and lets a file say
    what Python imports. Callbacks remove what their states in a checkpoint name: here only
    checkpoints in the run's folder are ever removed, and what this object wrote.

    Args:
        folder: The run's folder, the ``default_root_dir`` of its trainer.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = Path(folder).resolve()
        self._written: set[Path] = set()

    def save_checkpoint(
        self, checkpoint: Checkpoint, path: str | Path, storage_options: object = None
    ) -> None:
        """Writes the file, or leaves what was there before.

        Hyperparameters that a file cannot hold, such as a network, are left out, with a note. Dicts
        and sequences of other classes, such as ``defaultdict`` and ``deque``, are read as dicts and
        lists, and paths as text: a ``load_state_dict`` makes its own of them.

        Raises:
            TypeError: Something else is neither a number, text, a tensor, a list nor a dict.
            UserError: The path is an address, or there are options for one.
        """
        # of which Path has left one slash
        require(":/" not in str(path), "path", path, "a file of this machine")
        require(storage_options is None, "storage_options", storage_options, "left out")
        left_out = keep_plain_options(checkpoint, split_plain)
        if left_out and not self._written:
            note(
                f"checkpoints leave out the hyperparameters {listed(left_out)}, which are no plain"
                " values; load_from_checkpoint needs them as arguments"
            )
        try:
            checkpoint = plain(checkpoint)
        except MisfitError as error:  # while what was trained can still be saved otherwise
            raise TypeError(
                f"a checkpoint holds numbers, text, tensors, and lists and dicts of these: {error}"
            ) from error
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial, open(partial, "wb") as file:
            torch.save(checkpoint, file)
        self._written.add(path.resolve())

    def load_checkpoint(
        self, path: str | Path, map_location: object = "cpu", weights_only: bool | None = True
    ) -> Checkpoint:
        """Reads a checkpoint onto the CPU without executing anything it says."""
        checkpoint: Checkpoint = read_file(path)
        return checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint of the run; does nothing if the path leads elsewhere."""
        target = Path(path).resolve()
        is_of_run = target.is_relative_to(self._folder) and target.suffix == ".ckpt"
        if (is_of_run or target in self._written) and target.is_file():
            Path(path).unlink()


def keep_plain_options(
    checkpoint: Checkpoint, split: Callable[[Checkpoint], tuple[Checkpoint, Iterable[str]]]
) -> list[str]:
    """Keeps hyperparameters that a checkpoint can hold, as plain values; names the others.

    ``split`` returns options as plain values, and the names of those that are none.
    """
    left_out: list[str] = []
    for key in _HYPERPARAMETERS:
        if key in checkpoint:
            checkpoint[key], others = split(checkpoint[key])
            left_out += others
    return left_out


def first_sound(
    paths: Sequence[Path], read: Callable[[Path], Checkpoint], say: Callable[[str], None] = note
) -> tuple[Path | None, Checkpoint]:
    """Reads the first of some checkpoints, the newest first, that is not damaged, if any.

    Raises:
        UserError: All that there are are damaged.
    """
    for path in paths:
        try:
            return path, read(path)
        except UserError as error:
            if path == paths[-1]:
                raise
            say(f"{error}; looking for the one before it")
    return None, {}
