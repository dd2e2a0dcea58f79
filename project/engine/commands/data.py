"""The data that a checkpoint was trained on, opened again without letting the file choose what is imported or written."""

from collections.abc import Collection, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from ..errors import UserError, printable
from ..loading.data_module import ImageDataModule
from ..loading.image_files import ImageFilesDataModule
from ..loading.paths import ClassFiles
from ..loading.splits import SPLITS
from ..run.checkpoint import About
from ..run.settings import imported_class, plain_options


def remembered_data(about: About) -> tuple[type[ImageDataModule], dict[str, Any]]:
    """Finds the data module that a checkpoint was trained with, and its options that suit any machine."""
    data = about["data"]
    if data is None:
        raise UserError(
            "the checkpoint does not say what data it was trained on; name it with --data"
        )
    name = printable(data.get("class_path"))
    found = imported_class(name, ImageDataModule)
    if found is None:
        raise UserError(
            f"the checkpoint was trained on {name}, which is no data module that is imported here; give --import"
            " with the module that defines it, or in Python import it first"
        )
    options = plain_options(data["init_args"], found)
    # a file decides neither what is written nor how many processes start
    return found, {
        name: value for name, value in options.items() if name not in ("cache", "num_workers")
    }


def require_datasets(about: About, given: Collection[str]) -> None:
    """Requires the datasets that a checkpoint was trained with, where these were classes or functions.

    A checkpoint chooses nothing that is imported. Without them, the split would be cut from the training images.
    """
    options = about["data"]["init_args"] if about["data"] is not None else {}
    for split in SPLITS:
        if split not in given and isinstance(name := options.get(split), str):
            raise UserError(
                f"the checkpoint was trained with the dataset {printable(name)} as {split}, but may not choose what is"
                f" imported; evaluate takes it by --data.{split} and its options, open_data in Python by {split}="
            )


def open_data(about: About, **changes: Any) -> ImageDataModule:
    """Builds the data module that a checkpoint was trained with.

    Args:
        about: The checkpoint's ``about``.
        changes: Options that differ from training's, as the ``root`` of images that were moved.
    """
    found, options = remembered_data(about)
    require_datasets(about, changes)
    try:
        data = found(**options | changes)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{found.__name__} does not accept the checkpoint's options: {error}"
        ) from error
    if "root" not in changes:
        require_there(data, options)
    return data


def was_trained_on(about: About, data: ImageFilesDataModule) -> bool | None:
    """Returns True if any of these images were trained on, by whatever path; None if unknown."""
    try:
        found, options = remembered_data(about)
        if not issubclass(found, ImageFilesDataModule):
            return False
        trained = _identities({"train": found(**options).files()["train"]})
    except (UserError, TypeError, ValueError):
        return None
    return data.images_root.is_dir() and not trained.isdisjoint(_identities(data.files()))


def _identities(splits: Mapping[str, ClassFiles]) -> set[tuple[int, int]]:
    """Returns the device and inode of each file that is there."""
    files = (file for classes in splits.values() for files in classes.values() for file in files)
    return {(stat.st_dev, stat.st_ino) for stat in (file.stat() for file in files if file.exists())}


def require_there(data: ImageDataModule, options: dict[str, Any]) -> None:
    """Refuses to download to a folder that only a checkpoint names, unless it is the data module's own default."""
    root, place = options.get("root"), getattr(data, "images_root", None)
    if root is None or root != data.hparams.get("root") or place is None or Path(place).is_dir():
        return
    if root != signature(type(data)).parameters["root"].default:
        raise UserError(
            f"the checkpoint was trained on the images in '{place}', which are not there; say where they are, or shall"
            " be, with --data.root"
        )
