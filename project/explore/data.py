"""The data that a checkpoint was trained on, opened again without letting the file choose what is imported or written."""

from inspect import signature
from pathlib import Path
from typing import Any

from project.data import ImageDataModule
from project.errors import UserError, printable
from project.run.checkpoint import About
from project.run.settings import imported_class, plain_options

_WRITTEN = ("cache",)  # options that name what is written


def remembered_data(about: About) -> tuple[type[ImageDataModule], dict[str, Any]]:
    """Finds the data module that a checkpoint was trained with, and its options.

    Args:
        about: What the checkpoint says of itself.

    Returns:
        The class, and those options that are plain settings and name nothing that is written.

    Raises:
        UserError: No data module of that name is imported.
    """
    data = about["data"]
    if data is None:
        raise UserError("the checkpoint does not say what data it was trained on; name it with --data")
    name = printable(data.get("class_path"))
    found = imported_class(name, ImageDataModule)
    if found is None:
        raise UserError(
            f"the checkpoint was trained on {name}, which is no data module that is imported here; give --import"
            " with the module that defines it, or in Python import it first"
        )
    options = plain_options(data["init_args"], found)
    return found, {name: value for name, value in options.items() if name not in _WRITTEN}


def open_data(about: About, **changes: Any) -> ImageDataModule:
    """Builds the data module that a checkpoint was trained with.

    Args:
        about: What the checkpoint says of itself.
        changes: Options that are other than then, as the ``root`` of images that lie elsewhere now.

    Raises:
        UserError: No data module of that name is imported, it does not take the options, or its images would be
            downloaded to where the checkpoint says.
    """
    found, options = remembered_data(about)
    try:
        data = found(**options | changes)
    except (TypeError, ValueError) as error:
        raise UserError(f"{found.__name__} does not take the options that the checkpoint remembers: {error}") from error
    if "root" not in changes:
        require_there(data, options)
    return data


def require_there(data: ImageDataModule, options: dict[str, Any]) -> None:
    """Refuses to download to a folder that only a checkpoint names.

    Args:
        data: The data module.
        options: What the checkpoint remembers.

    Raises:
        UserError: The images are not there, and the folder is not the data module's own default.
    """
    root, place = options.get("root"), getattr(data, "images_root", None)
    if root is None or root != data.hparams.get("root") or place is None or Path(place).is_dir():
        return
    if root != signature(type(data)).parameters["root"].default:
        raise UserError(
            f"the checkpoint was trained on the images in '{place}', which are not there; say where they are, or shall"
            " be, with --data.root"
        )
