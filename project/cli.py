"""What ``fit`` and ``evaluate`` share: data modules, model and progress."""

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
    """Mixin of both commands; ``path_classes`` chooses a data module by what ``--data`` names."""

    data_class: type[LightningDataModule] = ImageDataModule
    path_classes: ClassVar[Mapping[str, type]] = {
        "root": FolderDataModule,
        "file": CSVDataModule,
        "hf": HuggingFaceDataModule,
    }
    progress_class: type[Callback] = ProgressLines
    model: ImageClassifier
    datamodule: ImageDataModule
