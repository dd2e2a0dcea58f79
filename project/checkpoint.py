"""What goes into a checkpoint beside the weights, and reading a checkpoint safely.

A checkpoint explains itself: under the key ``about`` it carries the class names, the preprocessing for evaluation, the
architecture, the data and the seed of its split, the versions it was made with and the figures it had reached. All of
it is plain data, so that ``torch.load(..., weights_only=True)`` reads the whole file.
"""

import platform
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypedDict

import torch

from project.errors import UserError

ABOUT = "about"


class Preprocessing(TypedDict):
    """How a picture becomes the network's input in evaluation.

    Attributes:
        resize: The length in pixels that the picture's shorter side is scaled to, bilinear with antialiasing.
        crop: The side in pixels of the square then cut from the centre.
        mean: What is subtracted from each RGB channel, on a scale of 0 to 1.
        std: What each RGB channel is then divided by, on the same scale.
    """

    resize: int
    crop: int
    mean: list[float]
    std: list[float]


class About(TypedDict):
    """What a checkpoint says of itself."""

    class_names: list[str]
    preprocessing: Preprocessing
    arch: str
    stem: str
    data: dict[str, Any]
    split_seed: int
    versions: dict[str, str]
    epoch: int
    step: int
    figures: dict[str, Any]


def versions() -> dict[str, str]:
    """The versions that decide what a checkpoint's numbers are."""
    packages = {name: version(name) for name in ("torch", "torchvision", "lightning", "torchmetrics")}
    return {"python": platform.python_version(), **packages}


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint of this project onto the CPU without executing anything it says.

    Raises:
        UserError: The file is missing, is damaged, holds more than plain data, or was not written by this project.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(
            f"there is no checkpoint file at '{path}'; a run keeps its own under runs/<name>/checkpoints/"
        ) from None
    except (UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"'{path}' is damaged or is no checkpoint that can be read safely ({_first_sentence(error)})"
        ) from error
    if not (isinstance(checkpoint, dict) and ABOUT in checkpoint and "state_dict" in checkpoint):
        raise UserError(f"'{path}' was not written by this project: it does not name its classes and preprocessing")
    return checkpoint


def require_match(about: About, path: str | Path, *, class_names: list[str], arch: str, stem: str) -> None:
    """Compares a checkpoint with the model that is to take it up.

    Raises:
        UserError: The checkpoint is of another architecture or of other classes.
    """
    if (about["arch"], about["stem"]) != (arch, stem):
        raise UserError(
            f"'{path}' holds a {about['arch']} with the {about['stem']} stem, but this command asks for {arch} with the"
            f" {stem} stem; use --model.arch {about['arch']} --model.stem {about['stem']}, or another --name"
        )
    if about["class_names"] != class_names:
        raise UserError(
            f"'{path}' knows the {len(about['class_names'])} classes {_some(about['class_names'])}, but the data has"
            f" the {len(class_names)} classes {_some(class_names)}; use the data it was trained on, or another --name"
        )


def _some(names: list[str], count: int = 4) -> str:
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def _first_sentence(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
