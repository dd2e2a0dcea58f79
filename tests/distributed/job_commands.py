"""Runs commands one after the other in the processes that torchrun has started: importing takes longer than they do.

Arguments: a JSON list of command lines, each a module and its arguments.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from project.data import SyntheticFlowersDataModule


class AnnouncingDataModule(SyntheticFlowersDataModule):
    """Says when it would download.

    Args:
        kwargs: See :class:`project.data.SyntheticFlowersDataModule`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def prepare_data(self) -> None:
        """Only says so."""
        print("downloading", flush=True)


class GradientWitness(Callback):
    """Writes down how DistributedDataParallel sends gradients.

    Args:
        out: The file to write.
    """

    def __init__(self, out: str) -> None:
        self.out = out

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Asks it, when it has worked."""
        strategy: Any = trainer.strategy
        said = strategy.model._get_ddp_logging_data()
        if trainer.is_global_zero:
            names = ("comm_hook", "static_graph", "gradient_as_bucket_view", "find_unused_parameters")
            found = {name: said.get(name) for name in names}
            state = type(strategy._ddp_comm_state).__name__
            Path(self.out).write_text(json.dumps({**found, "state": state, "steps": trainer.global_step}))


def register_hooks_everywhere() -> None:
    """Lightning leaves communication hooks out unless the device is a GPU; over gloo they work as well."""
    register: Any = DDPStrategy._register_ddp_hooks

    def patched(self: DDPStrategy) -> None:
        device = DDPStrategy.root_device
        assert isinstance(self.model, DistributedDataParallel)
        DDPStrategy.root_device = property(lambda _: type("", (), {"type": "cuda"}))  # type: ignore[assignment]
        try:
            register(self)
        finally:
            DDPStrategy.root_device = device  # type: ignore[method-assign]

    DDPStrategy._register_ddp_hooks = patched  # type: ignore[method-assign]


def main(commands: list[list[str]]) -> None:
    """Runs the commands as ``python -m`` does."""
    register_hooks_everywhere()
    for module, *args in commands:
        sys.argv = [module, *args]
        # as a process's own arguments and variables: Lightning wrote some of the last run there
        os.environ.pop("PL_GLOBAL_SEED", None)
        runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
