"""The Trainer, and what it refuses: what would not work, or measure and save something else than was planned."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jsonargparse.typing import register_type
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

from ..errors import UserError
from ..loading.data_module import ReproducibleDataModule
from ..run.processes import watch_processes
from ..training.best_checkpoint import Monitor
from ..upstream import disable_signal_handling

# StochasticWeightAveraging has one as a default, which would come to a config as an error text
register_type(torch.device, str, torch.device)


class ExactTrainer(Trainer):
    """Takes 1 as one batch and 1.0 as all of them; Lightning names ``float`` first, which makes both all of them.

    Under torchrun, devices and nodes that were not given are those that it started.

    Args:
        limit_train_batches: Training batches of an epoch: a number of them, or a share from 0.0 to 1.0.
        limit_val_batches: Validation batches: a number of them, or a share from 0.0 to 1.0.
        limit_test_batches: Test batches: a number of them, or a share from 0.0 to 1.0.
        limit_predict_batches: Batches to predict: a number of them, or a share from 0.0 to 1.0.
        overfit_batches: Batches to train and validate on, the same in each epoch, or their share; 0.0 is off.
        kwargs: See ``lightning.pytorch.Trainer``.
    """

    def __init__(
        self,
        *,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        **kwargs: Any,
    ) -> None:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            if kwargs.get("devices") in (None, "auto"):
                kwargs["devices"] = int(os.environ["LOCAL_WORLD_SIZE"])
            if kwargs.get("num_nodes") in (None, 1):
                kwargs["num_nodes"] = int(os.environ["GROUP_WORLD_SIZE"])
        super().__init__(
            limit_train_batches=limit_train_batches,
            limit_val_batches=limit_val_batches,
            limit_test_batches=limit_test_batches,
            limit_predict_batches=limit_predict_batches,
            overfit_batches=overfit_batches,
            **kwargs,
        )


@contextmanager
def refused_options(what: str = "these --trainer options do not work here") -> Iterator[None]:
    """Raises a UserError where a constructor of Lightning refuses its options."""
    try:
        yield
    except (MisconfigurationException, ModuleNotFoundError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what}: {' '.join(str(error).split())}") from error


def prepare_trainer(trainer: Trainer) -> None:
    """Makes evaluation exact in float32 and processes end together; refuses a launcher's other number of processes."""
    torch.backends.cudnn.allow_tf32 = False  # evaluation is in float32, which this would round to 10 bits
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    started = int(os.environ.get("WORLD_SIZE" if by_torchrun else "SLURM_STEP_NUM_TASKS") or 1)
    wanted = trainer.num_devices * trainer.num_nodes
    if started != wanted and (by_torchrun or started > 1):  # each would train alone
        raise UserError(f"--trainer.devices times --trainer.num_nodes is {wanted}, but the launcher started {started}")
    if not hasattr(trainer, "val_check_interval"):  # where it is a time; EarlyStopping asks for it all the same
        trainer.val_check_interval = math.inf
    disable_signal_handling(trainer)
    watch_processes(trainer.strategy.launcher)


def require_supported(trainer: Trainer) -> None:
    """Refuses what would measure or save something else than all weights of the run that was planned."""
    strategy: Strategy = trainer.strategy
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        name = type(strategy).__name__
        raise UserError(f"--trainer.strategy {name} does not keep all weights on each device; use ddp")
    if strategy.launcher is not None and not hasattr(strategy.launcher, "cluster_environment"):
        raise UserError("--trainer.strategy: processes that are forked cannot hand their metrics back; use ddp")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
        if isinstance(callback, BatchSizeFinder | LearningRateFinder):  # they change a run after it was planned
            name = type(callback).__name__
            raise UserError(f"--trainer.callbacks: {name} searches in Python alone, as docs/change_it.md shows")


def require_sound_run(
    trainer: Trainer, data: ReproducibleDataModule, best: dict[str, str | None], monitor: Monitor
) -> None:
    """Refuses limits that leave no batch, and callbacks that take a metric's worst for its best, before data is read.

    ``best`` has the modes in which metrics are best; ``monitor`` is the best checkpoint's, in a mode that the user chose.
    """
    data.require_usable(trainer.world_size)
    sizes = data.split_sizes()
    for split in ("train", "val", "test"):
        limit, batches = getattr(trainer, f"limit_{split}_batches"), math.ceil(sizes.get(split, 0) / data.batch_size)
        if limit == 0 or (isinstance(limit, float) and 0 < limit * batches < 1):
            raise UserError(f"--trainer.limit_{split}_batches {limit} leaves no batch; give a whole number, such as 1")
    modes = {"train/loss": "min", "train/accuracy": "max"} | best | {monitor.monitor: monitor.mode}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
        metric, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        wanted = modes.get(str(metric))
        if mode in ("min", "max") and wanted not in (None, mode):
            name = type(callback).__name__
            raise UserError(f"{name} has mode {mode}, but {wanted} of '{metric}' is best; give it mode {wanted}")
