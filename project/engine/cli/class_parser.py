"""Parser of commands that build classes from options: LightningCLI's, with defaults for a run."""

from enum import Enum
from typing import Any

import torch
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from torch import nn

from ..upstream import options_of
from .parser import CommandParser


class ClassParser(CommandParser, LightningArgumentParser):
    """The parser of a command; jsonargparse makes one for each class that an option takes."""

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Changes defaults that do not suit a run.

        Loggers write into the run's folder; a loss returns one number per image.
        """
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        for action in options_of(self):
            if action.dest == "save_dir" and action.required and issubclass(theclass, Logger):
                action.required = False
                action.default = "."
            if action.dest == "reduction" and issubclass(theclass, nn.Module):
                action.default = "none"
            if isinstance(action.default, Enum):  # YAML has neither
                action.default = action.default.value
            if isinstance(action.default, torch.device):
                action.default = str(action.default)
        return added

    def add_function_arguments(
        self, *args: Any, linked_targets: object = None, **kwargs: Any
    ) -> list[str]:
        """Leaves out an argument that jsonargparse passes, and takes for classes alone."""
        added: list[str] = super().add_function_arguments(*args, **kwargs)
        return added
