"""Reading a checkpoint safely, and writing it whole.

A checkpoint explains itself: under the key ``about`` it carries the class names, the preprocessing
for evaluation, the architecture, the data and the seed of its split, the versions it was made with
and the metrics it had reached. All of it is plain data, so that ``torch.load(...,
weights_only=True)`` reads the whole file.
"""

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired, TypedDict, TypeGuard

import torch
from lightning.pytorch.core.saving import load_hparams_from_tags_csv, load_hparams_from_yaml
from torch import Tensor
from torch.serialization import safe_globals

from ..exact._checkpoint_io import OPTIONS, AtomicCheckpointIO, Checkpoint, keep_plain_options
from ..exact._errors import UserError, listed
from ..exact._non_finite import require_finite
from ..exact._plain import MisfitError, inside
from ..exact._reading import read_file
from ._downloads import fetch_weights
from ._preprocessing import Preprocessing, is_preprocessing
from ._schema import Rule, is_sound, require_fit
from ._settings import remembered

ABOUT = "about"
CALIBRATION = ("temperature", "coverage")
_NETWORK = "network."  # where a classifier of this project has it

About = Checkpoint
"""Facts of a checkpoint about itself, see ``_checkpoints.describe_run``."""


_VERSION = "pytorch-lightning_version"
_Coverage = Annotated[
    list[float],
    Rule("99 numbers from 0 to 1", lambda row: len(row) == 99 and all(0 <= x <= 1 for x in row)),
]
_Version = Annotated[
    str, Rule("a version", lambda text: re.fullmatch(r"[2-9]\.\d([.\w]*\d)?", text) is not None)
]


class _Data(TypedDict):
    """The class and the options of a data module."""

    class_path: str
    init_args: dict[str, object]


class _About(TypedDict):
    """The types of what a checkpoint says of itself; it may say more."""

    model: NotRequired[str]
    class_names: list[str]
    preprocessing: dict[str, object]
    thresholds: NotRequired[dict[str, float] | None]
    temperature: NotRequired[Annotated[float, Rule("from 0.01 to 100", lambda t: 0.01 <= t <= 100)]]
    coverage: NotRequired[_Coverage]
    arch: str
    arch_args: dict[str, object]
    data: _Data | None
    images: NotRequired[dict[str, int]]
    digests: NotRequired[dict[str, str]]
    changes_of_data: NotRequired[list[str]]
    processes: NotRequired[int]
    versions: NotRequired[dict[str, str]]
    selection: NotRequired[dict[str, str] | None]
    epoch: int
    step: int
    metrics: dict[str, dict[str, object]]


class _Contents(TypedDict):
    """The types of what every checkpoint has."""

    about: _About
    state_dict: dict[str, object]
    hyper_parameters: NotRequired[dict[str, object]]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint of this project onto the CPU, without executing anything it says.

    Raises:
        UserError: The file is missing, damaged, or of another program.
    """
    checkpoint = _described(_read(path))
    if not _has_description(checkpoint):
        raise UserError(
            f"'{path}' was not written by this project: it does not name its classes and"
            " preprocessing"
        )
    with damaged(f"'{path}'"):
        require_fit(checkpoint, _Contents)
        with inside(_VERSION):  # by which Lightning migrates it
            require_fit(checkpoint.get(_VERSION, "2.0"), _Version)
        about = checkpoint[ABOUT]
        if (thresholds := about.get("thresholds")) and {*about["class_names"]} - {*thresholds}:
            raise MisfitError("must have each class", ABOUT, "thresholds")
        with inside("state_dict"):
            _require_sound(checkpoint["state_dict"], path)
    return checkpoint


@contextmanager
def damaged(file: str, verdict: str = "is damaged") -> Iterator[None]:
    """Turns an error about a value of a file into a user error."""
    try:
        yield
    except MisfitError as error:
        raise UserError(f"{file} {verdict}: {error}") from error


def _described(content: object) -> object:
    """Describes a checkpoint that does not describe itself by its hyperparameters.

    Lightning asks no callback about a file of weights alone.
    """
    if not isinstance(content, dict) or ABOUT in content:
        return content
    if not isinstance(options := content.get(OPTIONS), dict):
        return content
    known = ("model", "class_names", "preprocessing")  # once, the model was an option
    about = {name: value for name, value in {**options, **content}.items() if name in known}
    about |= {"arch": options.get("arch") or "", "arch_args": options.get("arch_args") or {}}
    about |= {"epoch": content.get("epoch", 0), "step": content.get("global_step", 0)}
    return {**content, ABOUT: {**about, "data": None, "metrics": {}}}


def _has_description(content: object) -> TypeGuard[Checkpoint]:
    """Returns True for a dict with weights that says how images are prepared for them."""
    return (
        isinstance(content, dict)
        and isinstance(about := content.get(ABOUT), dict)
        and isinstance(content.get("state_dict"), dict)
        and is_preprocessing(about.get("preprocessing"))
    )


def _require_sound(weights: Mapping[str, object], path: str | Path) -> None:
    """Requires weights that are there, finite, and no more than the file has bytes."""
    size = Path(path).stat().st_size
    for name, value in weights.items():
        if not (
            is_sound(value) and value.untyped_storage().nbytes() <= size and value.isfinite().all()
        ):
            raise MisfitError("is no tensor of finite numbers", name)


def require_same_classes(known: list[str], path: object, class_names: list[str]) -> None:
    """Refuses data with other classes than a checkpoint knows, or in another order."""
    if known != class_names:
        others = sorted({*known} ^ {*class_names})
        difference = f"differ in {listed(others, 4)}" if others else "have another order"
        raise UserError(
            f"'{path}' knows {len(known)} classes, but the data has {len(class_names)}; they"
            f" {difference}; use the data it was trained on"
        )


def read_hparams(path: str | Path) -> dict[str, object]:
    """Reads hyperparameters from a YAML or CSV file of Lightning's loggers."""
    read = load_hparams_from_tags_csv if Path(path).suffix == ".csv" else load_hparams_from_yaml
    if not Path(path).is_file():
        raise UserError(f"there is no file '{path}'")
    return dict(read(path))


class Weights(NamedTuple):
    """Weights of a file, the preprocessing that they need and their classes, if the file says it.

    Attributes:
        tensors: The weights by their names; if the file has several dicts of weights, behind the
            name of each and a dot.
        preprocessing: The preprocessing of images.
        class_names: The classes in the order of the head's rows; empty if unknown.
        others: Names of tensors of a checkpoint of this project that are not the network's.
        arch: The network's name; empty if unknown.
    """

    tensors: dict[str, Tensor]
    preprocessing: Preprocessing | None
    class_names: list[str]
    others: Sequence[str] = ()
    arch: str = ""


def weights_file(source: str | Path) -> Path:
    """Returns the file of weights, which is downloaded once if ``source`` is its address."""
    is_address = str(source).startswith(("http://", "https://"))
    return fetch_weights(str(source)) if is_address else Path(source)


def read_weights(source: str | Path) -> Weights:
    """Reads the tensors that a file is or contains, whatever script saved it.

    Of a checkpoint of this project, these are the network's.

    Args:
        source: The file, or its address, from which it is downloaded once.

    Raises:
        UserError: The file is missing or damaged, or has no dict of tensors.
    """
    path = weights_file(source)
    with safe_globals([Namespace]):  # inert: the options of a script, beside its weights
        content = _described(_read(path))
    if not _has_description(content):
        return Weights(_tensors_of(content, path), None, [])
    about = content[ABOUT]
    tensors = _tensors_of(content["state_dict"], path)
    names = about.get("class_names")  # which a module of one's own may not have
    is_plain = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return Weights(
        {n.removeprefix(_NETWORK): tensors[n] for n in tensors if n.startswith(_NETWORK)},
        about["preprocessing"],
        names if is_plain else [],
        [name for name in tensors if not name.startswith(_NETWORK)],
        str(about.get("arch", "")),
    )


def _tensors_of(content: object, path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a dict and of the dicts in it, the latter with their keys in front.

    If one dict alone has tensors, it gives the names. Which tensors to load, the network decides.
    """
    parts = {"": content, **content} if isinstance(content, dict) else {}
    dicts = {
        key: {n: v for n, v in part.items() if isinstance(n, str) and isinstance(v, Tensor)}
        for key, part in parts.items()
        if isinstance(part, dict)
    }
    dicts = {key: tensors for key, tensors in dicts.items() if tensors}
    if not dicts:
        raise UserError(f"'{path}' must be or contain a dict of weights, got none")
    if len(dicts) == 1:
        return next(iter(dicts.values()))
    return {
        f"{key}.{name}" if key else name: value
        for key, tensors in dicts.items()
        for name, value in tensors.items()
    }


class DescribedCheckpointIO(AtomicCheckpointIO):
    """Reads checkpoints that say what they are, those of earlier versions as the newest would be."""

    def save_checkpoint(
        self, checkpoint: Checkpoint, path: str | Path, storage_options: object = None
    ) -> None:
        """Writes the file, or leaves what was there before."""
        require_finite(checkpoint.get("state_dict", {}), checkpoint.get("global_step", 0))
        keep_plain_options(checkpoint, remembered)
        super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(
        self, path: str | Path, map_location: object = "cpu", weights_only: bool | None = True
    ) -> Checkpoint:
        """Reads a checkpoint onto the CPU without executing anything it says."""
        return {_VERSION: version("lightning"), **_as_newest(read_checkpoint(path))}


def _as_newest(checkpoint: Checkpoint) -> Checkpoint:
    """Moves what versions before 0.3 saved under other names."""
    if "counts" in checkpoint:
        checkpoint["metric_states"] = [
            {
                f"train_metrics.{name}": {"update_count": torch.tensor(1), **state}
                for name, state in checkpoint.pop("counts").items()
            }
        ]
    if "curves" in checkpoint:
        checkpoint["loggers"] = {"RunLogger.0": checkpoint.pop("curves")}
    return checkpoint


def _read(path: str | Path) -> object:
    """Reads a file of ``torch.save``, or says where runs keep theirs if there is none."""
    if not Path(path).is_file():
        raise UserError(
            f"there is no file '{path}'; runs keep theirs in runs/NAME/checkpoints/best.ckpt"
        )
    return read_file(path)
