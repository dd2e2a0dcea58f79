"""The Trainer, and what it refuses: what would not work, or measure and save something else than was planned."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
)
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

from ..errors import UserError
from ..loading.data_module import ImageDataModule
from ..run.processes import watch_processes
from ..training.best_checkpoint import BestCheckpoint, Monitor
from ..upstream import disable_signal_handling


class ExactTrainer(Trainer):
    """Takes 1 as one batch and 1.0 as all of them; Lightning names ``float`` first, which makes both all of them.

    Under torchrun and srun, devices and nodes that were not given are those that these have started.

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
        started, devices, nodes = _started()
        if started > 1 or _by_torchrun():
            if kwargs.get("devices") in (None, "auto"):
                kwargs["devices"] = devices
            if kwargs.get("num_nodes") in (None, 1):
                kwargs["num_nodes"] = nodes
        super().__init__(
            limit_train_batches=limit_train_batches,
            limit_val_batches=limit_val_batches,
            limit_test_batches=limit_test_batches,
            limit_predict_batches=limit_predict_batches,
            overfit_batches=overfit_batches,
            **kwargs,
        )


def _by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _started() -> tuple[int, int, int]:
    """Returns the processes that torchrun or srun has started, those of each node, and the nodes; 1 without them."""
    by_slurm = "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_NODES"
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE") if _by_torchrun() else by_slurm
    processes, devices, nodes = (int(os.environ.get(name) or 1) for name in names)
    return processes, devices, nodes


@contextmanager
def refused_options(what: str = "these --trainer options do not work here") -> Iterator[None]:
    """Raises a UserError where a constructor of Lightning refuses its options."""
    try:
        yield
    except (
        MisconfigurationException,
        ModuleNotFoundError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        raise UserError(f"{what}: {' '.join(str(error).split())}") from error


def built_trainer(build: Callable[..., Trainer], **options: Any) -> Trainer:
    """Builds a trainer and prepares it; refuses options that Lightning refuses, and a launcher's other number of processes.

    Its processes end together.
    """
    with refused_options():
        trainer = build(**options)
    require_supported(trainer)
    started, wanted = _started()[0], trainer.num_devices * trainer.num_nodes
    by_slurm = isinstance(getattr(trainer.strategy, "cluster_environment", None), SLURMEnvironment)
    if started != wanted and (
        _by_torchrun() or by_slurm or started > 1
    ):  # each would train alone, or wait for others
        advice = "; start it with srun" if by_slurm and started == 1 else ""
        raise UserError(
            f"--trainer.devices times --trainer.num_nodes is {wanted}, but the launcher started {started}{advice}"
        )
    if not hasattr(
        trainer, "val_check_interval"
    ):  # where it is a time; EarlyStopping asks for it all the same
        trainer.val_check_interval = math.inf
    disable_signal_handling(trainer)
    watch_processes(trainer.strategy.launcher)
    return trainer


def require_supported(trainer: Trainer) -> None:
    """Rejects strategies and callbacks that would measure or save something else than all weights."""
    strategy: Strategy = trainer.strategy
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        name = type(strategy).__name__
        raise UserError(
            f"--trainer.strategy {name} does not keep all weights on each device; use ddp"
        )
    if strategy.launcher is not None and not hasattr(strategy.launcher, "cluster_environment"):
        raise UserError(
            "--trainer.strategy: forked or spawned processes cannot hand their metrics back; use ddp"
        )
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    for callback in callbacks:
        if isinstance(
            callback, BatchSizeFinder | LearningRateFinder
        ):  # they change a run after it was planned
            name = type(callback).__name__
            raise UserError(f"--trainer.callbacks: {name} searches in Python alone, outside a run")


def require_sound_run(
    trainer: Trainer, data: ImageDataModule, best: dict[str, str | None], monitor: Monitor
) -> None:
    """Refuses limits that leave no batch, and callbacks that take a metric's worst for its best, before data is read.

    ``best`` has the modes in which metrics are best; ``monitor`` is the best checkpoint's, in a mode that the user chose.
    """
    data.require_usable(trainer.world_size)
    sizes = data.split_sizes()
    for split in ("train", "val", "test"):
        limit, batches = (
            getattr(trainer, f"limit_{split}_batches"),
            math.ceil(sizes.get(split, 0) / data.batch_size),
        )
        if limit == 0 or (isinstance(limit, float) and 0 < limit * batches < 1):
            raise UserError(
                f"--trainer.limit_{split}_batches {limit} leaves no batch; give a whole number, such as 1"
            )
    folder = Path(trainer.default_root_dir, "checkpoints").resolve()
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and not isinstance(callback, BestCheckpoint):
            names = [callback.filename, callback.save_last and callback.CHECKPOINT_NAME_LAST]
            places = [Path(callback.dirpath or folder, str(name)).resolve() for name in names]
            for name in ("best", "last", "previous"):
                if folder / name in places:
                    raise UserError(
                        f"{type(callback).__name__} would write {name}.ckpt, a checkpoint of the run;"
                        " give it another filename or dirpath"
                    )
    modes = {"train/loss": "min", "train/accuracy": "max"} | best | {monitor.monitor: monitor.mode}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
        metric, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if mode in ("min", "max") and (wanted := modes.get(str(metric)) or mode) != mode:
            name = type(callback).__name__
            raise UserError(
                f"{name} has mode {mode}, but {wanted} of '{metric}' is best; give it mode {wanted}"
            )
