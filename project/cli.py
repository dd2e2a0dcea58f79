"""The classes that commands know: the bases of data modules and models, and how progress is shown."""

from typing import get_args, get_type_hints

from jsonargparse import set_parsing_settings
from lightning.pytorch import Callback

from project.callbacks import DefaultCallbacks, ProgressLines
from project.data import FolderDataModule, ImageDataModule
from project.engine.cli.classes import CLASS_OPTIONS
from project.engine.cli.command import Command, one_line_errors, quiet_libraries
from project.model import ImageClassifier

__all__ = ["ProjectCLI", "one_line_errors", "quiet_libraries"]

CLASS_OPTIONS |= {"data": ImageDataModule, "model": ImageClassifier}

CALLBACK_OPTIONS = {
    f"callbacks.{name}": cls
    for name, hint in get_type_hints(DefaultCallbacks).items()
    for cls in get_args(hint)
    if issubclass(cls, Callback)
}
"""The default callbacks with options of their own, as in ``--callbacks.first_batch.count 8``."""

set_parsing_settings(subclasses_disabled=[*CALLBACK_OPTIONS.values()])  # their class is not for the user to name

TRAINER_OPTIONS = (
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "max_epochs", "accumulate_grad_batches"),
    *("gradient_clip_val", "callbacks", "fast_dev_run"),
)
"""The options of the Trainer that ``--help`` shows."""


class ProjectCLI(Command):
    """A command on this package's data modules and models."""

    folder_class = FolderDataModule
    progress_class = ProgressLines
    model: ImageClassifier
    datamodule: ImageDataModule
