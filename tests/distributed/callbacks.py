"""Callbacks that commands of tests name, for processes that do not do the same."""

import os
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from project.errors import LocalError


class FirstFails(Callback):
    """The first process fails while the others are busy for good, as with a collective on a GPU."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            raise LocalError("only the first one fails")
        Path("busy").write_text(str(os.getpid()))
        time.sleep(600)
