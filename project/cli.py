"""The classes that ``fit`` and ``evaluate`` know, and how both show progress."""

from collections.abc import Mapping
from typing import ClassVar

from lightning.pytorch import Callback, LightningDataModule

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

    data_class: type[LightningDataModule] = ImageDataModule
    path_classes: ClassVar[Mapping[str, type]] = {
        "root": FolderDataModule,
        "file": CSVDataModule,
        "hf": HuggingFaceDataModule,
    }
    progress_class: type[Callback] = ProgressLines
    model: ImageClassifier
    datamodule: ImageDataModule
