"""Callbacks that commands of tests name, for processes that do not do the same."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from project.engine.errors import LocalError


class FirstFails(Callback):
    """The first process fails while the others are busy for good, as with a collective on a GPU."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            raise LocalError("only the first one fails")
        Path("busy").write_text(str(os.getpid()))
        time.sleep(600)


class Dies(Callback):
    """One process is killed, as by the system where memory runs out.

    Args:
        rank: Which.
        hook: When: a method of Lightning's callbacks.
    """

    def __init__(self, rank: int, hook: str) -> None:
        self.rank = rank
        setattr(self, hook, self._die)

    def _die(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_rank == self.rank and not trainer.sanity_checking:
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
