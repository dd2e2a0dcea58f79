"""The classes that ``fit`` and ``evaluate`` know, and how both show progress."""

from typing import ClassVar

from project.callbacks import ProgressLines
from project.data import (
    CSVDataModule,
    FolderDataModule,
    HuggingFaceDataModule,
    ImageDataModule,
)
from project.model import ImageClassifier


class ProjectCLI:
    """What both commands share: this package's data modules and models."""

    data_class = ImageDataModule
    path_classes: ClassVar = {
        "root": FolderDataModule,
        "file": CSVDataModule,
        "hf": HuggingFaceDataModule,
    }
    progress_class = ProgressLines
    model: ImageClassifier
    datamodule: ImageDataModule
