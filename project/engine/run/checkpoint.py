"""Facts that a checkpoint holds beside the weights, and reading a checkpoint safely.

A checkpoint explains itself: under the key ``about`` it carries the class names, the preprocessing for evaluation, the
architecture, the data and the seed of its split, the versions it was made with and the metrics it had reached. All of
it is plain data, so that ``torch.load(..., weights_only=True)`` reads the whole file.
"""

import platform
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from ..errors import UserError, first_sentence
from ..preprocessing import is_preprocessing
from .files import whole_file

ABOUT = "about"
_DIRECTORY = 0x10  # of MS-DOS, in a zip file's directory

About = dict[str, Any]
"""Facts of a checkpoint about itself, see :func:`describe_run`."""


def versions() -> dict[str, str]:
    """Returns the versions that decide what a checkpoint's numbers are."""
    packages = {
        name: version(name) for name in ("torch", "torchvision", "lightning", "torchmetrics")
    }
    return {"python": platform.python_version(), **packages}


def describe_run(trainer: Any, model: Any, selection: dict[str, str] | None) -> About:
    """Collects the facts of a checkpoint about itself, as plain data.

    ``thresholds`` are by class, where an image may have several. ``data`` names a class without a module to import.
    ``images`` counts splits. ``selection`` says how ``best.ckpt`` is chosen. ``coverage`` has the thresholds of prediction
    sets, by percent, where the validation set was measured with these weights.
    """
    data = getattr(trainer, "datamodule", None)
    rates = {
        name: float(value)
        for name, value in trainer.callback_metrics.items()
        if name.startswith("train/")
    }
    # afterwards Lightning counts on
    training = trainer.state.fn == "fit" and not trainer.state.finished
    return About(
        model=type(model).__name__,
        class_names=model.class_names,
        preprocessing=model.preprocessing,
        thresholds=model.thresholds,
        arch=model.arch,
        arch_args=model.arch_args or {},
        **model.training_summary(),
        data={"class_path": type(data).__name__, "init_args": dict(data.hparams)} if data else None,
        images=dict(getattr(data, "split_sizes", dict)()),
        processes=trainer.world_size,
        transforms=getattr(data, "transforms_in_words", dict)(),
        split_seed=getattr(data, "split_seed", None),
        versions=versions(),
        epoch=trainer.current_epoch if training else max(trainer.current_epoch - 1, 0),
        step=trainer.global_step,
        selection=selection,
        metrics={**rates, **model.results},
        coverage=model.coverage if model.validated_step == trainer.global_step else {},
    )


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint of this project, and no other file, onto the CPU without executing anything it says."""
    _require_file(path)
    checkpoint: dict[str, Any] = _read(path)
    about = (
        checkpoint.get(ABOUT)
        if isinstance(checkpoint, dict) and "state_dict" in checkpoint
        else None
    )
    needed = {
        "class_names",
        "arch",
        "arch_args",
        "epoch",
        "step",
        "metrics",
        "data",
        "preprocessing",
    }
    if not (
        isinstance(about, dict)
        and needed <= about.keys()
        and is_preprocessing(about["preprocessing"])
        and _are_names([about["arch"]])
        and _are_names(about["class_names"])
        and _are_fractions(about.get("thresholds"), about["class_names"])
        and _are_fractions(about.get("coverage"))
    ):
        raise UserError(
            f"'{path}' was not written by this project: it does not name its classes and preprocessing"
        )
    return checkpoint


def _are_names(found: Any) -> bool:
    """Returns True for a list of texts that are short enough to be compared and printed."""
    return isinstance(found, list) and all(
        isinstance(name, str) and len(name) <= 1000 for name in found
    )


def _are_fractions(found: Any, names: list[str] | None = None) -> bool:
    """Returns True for a dict of numbers from 0 to 1, of all these names if there are any, and for None."""
    return found is None or (
        isinstance(found, dict)
        and (names is None or [*found] == names)
        and all(isinstance(value, float) and 0 <= value <= 1 for value in found.values())
    )


def read_newest(
    paths: Iterable[Path], note: Callable[[str], None]
) -> tuple[Path | None, dict[str, Any]]:
    """Reads the first of some checkpoints, the newest first, that is not damaged; returns None if there is none."""
    damage = None
    for path in paths:
        try:
            return path, read_checkpoint(path)
        except UserError as error:
            note(f"{error}; looking for the one before it")
            damage = error
    if damage is not None:
        raise damage
    return None, {}


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Reads the one dict of tensors that a file is or contains, whatever script saved it."""
    _require_file(path)
    try:
        with safe_globals([Namespace]):  # inert: the options of a script, beside its weights
            content = _read(path)
    except UserError as error:
        if names := _unsafe_types(path):
            raise UserError(_conversion(path, names)) from error
        raise
    if _is_state_dict(content):
        return dict(content)
    parts = content.items() if isinstance(content, dict) else ()
    found = {key: value for key, value in parts if _is_state_dict(value)}
    for key in ("state_dict", "model"):  # of several, not an average
        if key in found:
            return dict(found[key])
    if len(found) != 1:
        raise UserError(
            f"'{path}' must be or contain one dict of weights, got {', '.join(found) or 'none'}"
        )
    return dict(*found.values())


def _is_state_dict(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and len(content) > 0
        and all(isinstance(name, str) for name in content)
        and all(isinstance(value, Tensor) for value in content.values())
    )


def _unsafe_types(path: str | Path) -> list[str]:
    """Names the types in a file that cannot be loaded safely, as far as it can be read."""
    with suppress(Exception):  # a damaged file raises all kinds
        return sorted(get_unsafe_globals_in_checkpoint(path))
    return []


def _conversion(path: str | Path, names: list[str]) -> str:
    """Says which types a file contains, and the line of Python that saves its weights alone."""
    weights = f"torch.load('{path}', weights_only=False)"
    if any(name.startswith("torch.nn.modules.") for name in names):  # a whole network
        weights += ".state_dict()"
    else:
        tensors = "isinstance(v, dict) and all(map(torch.is_tensor, v.values()))"
        weights = f"{{k: v for k, v in {weights}.items() if {tensors}}}"
    return (
        f"'{path}' contains {', '.join(names[:3])}, which cannot be loaded safely; if you trust the"
        f" file, convert it: python -c \"import torch; torch.save({weights}, 'weights.pth')\""
    )


def _require_file(path: str | Path) -> None:
    """Refuses what cannot be read as a file; opening a named pipe would wait for ever."""
    if Path(path).is_file():
        return
    best = Path(path) / "checkpoints" / "best.ckpt"
    if best.is_file():
        raise UserError(f"there is no file '{path}': it is a run's folder, with '{best}'")
    if Path(path).exists():
        raise UserError(f"there is no file '{path}': it is a folder, a pipe or a device")
    raise UserError(
        f"there is no file '{path}'; runs keep their checkpoints in runs/<name>/checkpoints/"
    )


def _read(path: str | Path) -> Any:
    try:
        if zipfile.is_zipfile(path):  # as all but old pickles are; torch does not compare checksums
            with zipfile.ZipFile(path) as archive:
                if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                    raise ValueError(
                        "it is compressed, as torch's files are not"
                    )  # a few MB could fill the memory
                if any(part.external_attr & _DIRECTORY for part in archive.infolist()):
                    raise ValueError("a part is marked as a folder")  # torch would read nothing
                if (damaged := archive.testzip()) is not None:
                    raise ValueError(f"the checksum of {damaged} is wrong")
        with warnings.catch_warnings(
            action="ignore"
        ):  # torch warns of an old pickle before it refuses it
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises all kinds
        raise UserError(
            f"'{path}' is damaged or cannot be read safely ({first_sentence(error)})"
        ) from error


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes whole files, where Lightning moves a temporary one, which across file systems is not atomic, without fsync.

    Only checkpoints in the run's folder are ever removed, and what this object wrote: the states of callbacks, which name
    what they would remove, come from a file too.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder.resolve()
        self._written: set[Path] = set()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes the file, or leaves what was there before."""
        if "state_dict" in checkpoint and ABOUT not in checkpoint:
            raise TypeError("the model's on_save_checkpoint must call super().on_save_checkpoint()")
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
        mine = target.is_relative_to(self._folder) or target in self._written
        if mine and target.suffix == ".ckpt" and target.is_file():
            Path(path).unlink()


def with_atomic_writes(plugins: Any, folder: Path) -> list[Any]:
    """Adds :class:`AtomicCheckpointIO` to the user's plugins: alone, or within one that wraps another."""
    mine, given = (
        AtomicCheckpointIO(folder),
        plugins if isinstance(plugins, list) else [plugins] if plugins else [],
    )
    for plugin in given:
        if getattr(plugin, "checkpoint_io", mine) is None:  # it wraps another
            plugin.checkpoint_io = mine
            return given
    return [mine, *given]  # Lightning refuses another CheckpointIO beside it
