"""The data that a checkpoint was trained on; the file chooses nothing that is imported."""

import os
from collections.abc import Collection, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule

from ..exact._checkpoint_io import Checkpoint
from ..exact._errors import UserError, printable
from ..exact._plain import inside
from ._checkpoint import ABOUT, About, damaged, read_hparams
from ._settings import imported_class, plain_options, require_arguments, subclasses
from ._splits import SPLITS


def remembered_data(about: About, base: type) -> tuple[type[Any], dict[str, Any]]:
    """Finds the data module that a checkpoint was trained with, and options for any machine.

    It is an imported subclass of ``base``.
    """
    data = about["data"]
    if data is None:
        raise UserError(
            "the checkpoint does not say what data it was trained on; name it with --data"
        )
    name = printable(data["class_path"])
    data_class = imported_class(name, base)
    if data_class is None:
        raise UserError(
            f"the checkpoint was trained on {name}, which is no data module that is imported here;"
            " give --import with the module that defines it, or in Python import it first"
        )
    with damaged("the checkpoint"), inside("about", "data", "init_args"):
        options = plain_options(data["init_args"], data_class)
    for name in ("cache", "num_workers", "prefetch_factor"):
        # a file decides neither what is written nor how many processes start
        options.pop(name, None)
    return data_class, options


def opened_data(
    base: type,
    checkpoint: Checkpoint,
    hparams_file: str | Path | None,
    arguments: dict[str, Any],
) -> Any:
    """Builds the data module that a checkpoint was trained with, from imported classes."""
    about = checkpoint[ABOUT]
    if hparams_file is not None and about["data"] is not None:
        about["data"]["init_args"] = read_hparams(hparams_file)
    data_class, options = remembered_data(about, base)
    require_datasets(about, arguments)
    require_arguments(data_class, options | arguments)
    data = data_class(**options | arguments)
    if "root" not in arguments:
        require_there(data, options)
    restore_data(data, states_of_data(checkpoint, base))
    return data


def states_of_data(checkpoint: Checkpoint, base: type) -> dict[str, Any]:
    """Returns the states that data modules have saved in a checkpoint, by the names of classes."""
    names = {cls.__qualname__ for cls in subclasses(base)}
    return {name: checkpoint[name] for name in names & checkpoint.keys()}


def restore_data(data: LightningDataModule, states: Mapping[str, Any]) -> None:
    """Gives a data module the state that one of its class has saved, as Lightning does."""
    if (name := type(data).__qualname__) in states:
        data.load_state_dict(states[name])


def require_datasets(about: About, given: Collection[str]) -> None:
    """Requires the datasets that a checkpoint was trained with, if these were classes or functions.

    A checkpoint chooses nothing that is imported. Without them, the split would be cut from the
    training images.
    """
    options = about["data"]["init_args"] if about["data"] is not None else {}
    for split in SPLITS:
        if split not in given and isinstance(name := options.get(split), str):
            raise UserError(
                f"the checkpoint was trained with the dataset {printable(name)}, but may not choose"
                " what is imported; name it, with its options",
                split,
            )


def require_there(data: LightningDataModule, options: dict[str, Any]) -> None:
    """Refuses to download to a folder that only a checkpoint names, except to the default."""
    root = options.get("root")
    folder = getattr(data, "images_root", None)
    if root is None or root != data.hparams.get("root") or folder is None or os.path.isdir(folder):
        return
    if root != signature(type(data)).parameters["root"].default:
        raise UserError(
            f"the checkpoint was trained on the images in '{folder}', which are not there; say"
            " where they are, or shall be",
            "root",
        )
