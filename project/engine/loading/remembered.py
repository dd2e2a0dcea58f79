"""The data that a checkpoint was trained on; the file chooses nothing that is imported."""

import os
from collections.abc import Collection
from inspect import signature
from typing import Any

from ..errors import UserError, printable
from ..run.checkpoint import About
from ..run.settings import imported_class, plain_options
from .data_module import ImageDataModule
from .splits import SPLITS


def remembered_data(about: About) -> tuple[type[ImageDataModule], dict[str, Any]]:
    """Finds the data module that a checkpoint was trained with, and options for any machine."""
    data = about["data"]
    if data is None:
        raise UserError(
            "the checkpoint does not say what data it was trained on; name it with --data"
        )
    name = printable(data.get("class_path"))
    data_class = imported_class(name, ImageDataModule)
    if data_class is None:
        raise UserError(
            f"the checkpoint was trained on {name}, which is no data module that is imported here;"
            " give --import with the module that defines it, or in Python import it first"
        )
    # a file decides neither what is written nor how many processes start
    options = {
        name: value
        for name, value in plain_options(data["init_args"], data_class).items()
        if name not in ("cache", "num_workers", "prefetch_factor")
    }
    return data_class, options


def require_datasets(about: About, given: Collection[str]) -> None:
    """Requires the datasets that a checkpoint was trained with, if these were classes or functions.

    A checkpoint chooses nothing that is imported. Without them, the split would be cut from the
    training images.
    """
    options = about["data"]["init_args"] if about["data"] is not None else {}
    for split in SPLITS:
        if split not in given and isinstance(name := options.get(split), str):
            raise UserError(
                f"the checkpoint was trained with the dataset {printable(name)} as {split}, but may"
                f" not choose what is imported; evaluate takes it by --data.{split} and its"
                f" options, load_from_checkpoint in Python by {split}="
            )


def require_there(data: ImageDataModule, options: dict[str, Any]) -> None:
    """Refuses to download to a folder that only a checkpoint names, except to the default."""
    root = options.get("root")
    folder = getattr(data, "images_root", None)
    if root is None or root != data.hparams.get("root") or folder is None or os.path.isdir(folder):
        return
    if root != signature(type(data)).parameters["root"].default:
        raise UserError(
            f"the checkpoint was trained on the images in '{folder}', which are not there; say"
            " where they are, or shall be, with --data.root"
        )
