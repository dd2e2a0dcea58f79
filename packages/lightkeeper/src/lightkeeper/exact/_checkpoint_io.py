"""Checkpoints that are written whole or not at all, and read without running what they say."""

import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from ._errors import UserError, first_sentence, listed, note
from ._files import whole_file
from ._pickles import require_modest
from ._plain import MisfitError, plain, require_tree, split_plain

_DIRECTORY = 0x10  # of MS-DOS, in a zip file's directory

OPTIONS = "hyper_parameters"
OPTIONS_OF_ALL = (OPTIONS, "datamodule_hyper_parameters")
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

        Hyperparameters that a file cannot hold, such as a network, are left out, with a note.

        Raises:
            TypeError: Something else is neither a number, text, a tensor, a list nor a dict.
        """
        self._leave_out_options(checkpoint)
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

    def _leave_out_options(self, checkpoint: Checkpoint) -> None:
        left_out: list[str] = []
        for key in OPTIONS_OF_ALL:
            if key in checkpoint:
                checkpoint[key], others = split_plain(checkpoint[key])
                left_out += others
        if left_out and not self._written:
            note(
                f"checkpoints leave out the hyperparameters {listed(left_out)}, which are no plain"
                " values; load_from_checkpoint needs them as arguments"
            )

    def load_checkpoint(
        self, path: str | Path, map_location: object = "cpu", weights_only: bool | None = True
    ) -> Checkpoint:
        """Reads a checkpoint onto the CPU without executing anything it says."""
        checkpoint: Checkpoint = read_file(path)
        return checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint of the run; does nothing if the path leads elsewhere."""
        target = Path(path).resolve()
        is_ours = target.is_relative_to(self._folder) or target in self._written
        if is_ours and target.suffix == ".ckpt" and target.is_file():
            Path(path).unlink()


def read_file(path: str | Path) -> Any:
    """Reads a file of torch's or of safetensors onto the CPU, and runs nothing that it says.

    Raises:
        UserError: It is missing, is damaged or says what to import or run.
    """
    if not Path(path).is_file():  # opening a named pipe would wait for ever
        raise UserError(f"there is no file '{path}'")
    read = _load_safetensors if Path(path).suffix == ".safetensors" else _load_torch
    try:
        return read(path)
    except Exception as error:  # a damaged file raises all kinds
        unsafe = re.search(r"GLOBAL (\S+)", str(error))  # as torch calls a type or a function
        why = f"it contains {unsafe[1]}" if unsafe else first_sentence(error)
        raise UserError(f"'{path}' is damaged or cannot be read safely: {why}") from error


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


def _load_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Reads tensors, which are all that such a file has; torch does so only from 2.14 on."""
    from safetensors.torch import load_file  # here, as few files need it

    return load_file(path)


def _load_torch(path: str | Path) -> object:
    if zipfile.is_zipfile(path):  # as all but old pickles are; torch compares no checksums
        _check_parts(path)
    require_modest(path)
    with warnings.catch_warnings(action="ignore"):  # of an old pickle, before it is refused
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    require_tree(content)
    return content


def _check_parts(path: str | Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for part in archive.infolist():
            if part.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed, as torch's files are not")
            if part.external_attr & _DIRECTORY:
                raise ValueError("a part is marked as a folder")  # torch would read nothing
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} is wrong")
