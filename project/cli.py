"""What ``fit`` and ``evaluate`` share: data modules, model and progress."""

import os
import sys
from collections.abc import Mapping
from typing import ClassVar

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningCLI

from project.callbacks import ProgressLines
from project.data import (
    CSVDataModule,
    FolderDataModule,
    HuggingFaceDataModule,
    ImageDataModule,
)
from project.model import ImageClassifier


class ProjectCLI(LightningCLI):
    """Mixin of both commands; ``path_classes`` chooses a data module by what ``--data`` names."""

    data_class: type[LightningDataModule] = ImageDataModule
    path_classes: ClassVar[Mapping[str, type]] = {
        "root": FolderDataModule,
        "file": CSVDataModule,
        "hf": HuggingFaceDataModule,
    }
    model: ImageClassifier
    datamodule: ImageDataModule

    @property
    def has_groups(self) -> bool:
        """True if images of the data are alike in groups, such as patients."""
        return getattr(self.datamodule, "group", None) is not None

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Builds the trainer, with lines of progress where no terminal would show a bar."""
        options = self.config_init.trainer
        callbacks = options.callbacks or []
        # behind "!" in Jupyter there is a terminal, but one that only appends
        in_notebook = bool(os.environ.get("JPY_PARENT_PID"))
        is_watched = sys.stdout.isatty() and sys.stderr.isatty() and not in_notebook
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if options.enable_progress_bar is None and not (is_watched or has_bar):
            options.callbacks = [*callbacks, ProgressLines()]
        return super().instantiate_trainer(**kwargs)
