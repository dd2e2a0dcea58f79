"""The classes that the commands ``fit`` and ``evaluate`` know: bases, data of a folder, and how progress is shown."""

from project.callbacks import ProgressLines
from project.data import FolderDataModule, ImageDataModule
from project.engine.cli.classes import CLASS_OPTIONS
from project.engine.cli.command import Command
from project.model import ImageClassifier

CLASS_OPTIONS |= {"data": ImageDataModule, "model": ImageClassifier}


class ProjectCLI(Command):
    """A command on this package's data modules and models."""

    folder_class = FolderDataModule
    progress_class = ProgressLines
    model: ImageClassifier
    datamodule: ImageDataModule
