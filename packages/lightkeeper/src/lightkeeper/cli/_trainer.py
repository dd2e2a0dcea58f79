"""Lightning's Trainer as commands build it, and what its options may not ask of a run."""

import os
import signal
from typing import Any

from jsonargparse.typing import PositiveInt
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    LearningRateFinder,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities import rank_zero_only

from ..exact._errors import UserError, require
from ..exact._last_checkpoint import require_own_files
from ..exact._processes import end_with_parent
from ..exact._upstream import callbacks_of
from ..exact._upstream_loop import exact_loop
from ..images._best_checkpoint import BestCheckpoint
from ..images._data_module import ImageDataModule

_FIRST_PID = "LOCAL_RANK_0_PID"  # in the environment of what the first process starts
_TUNER = "use Lightning's Tuner in Python before the run"
_NOT_RESUMABLE: dict[type, str] = {
    StochasticWeightAveraging: "average the weights with EMAWeightAveraging",
    BatchSizeFinder: _TUNER,
    LearningRateFinder: _TUNER,
    BaseFinetuning: (
        "train the head alone first, with --model.freeze backbone, and start another run from its"
        " weights"
    ),
    ModelPruning: "prune the weights of the finished run with torch.nn.utils.prune",
    OnExceptionCheckpoint: "it would resume within a step; last.ckpt is saved every few minutes",
    SpikeDetection: "it cannot load what it has saved",
}
"""Callbacks with which a run does not resume exactly, and what to use instead."""


class ExactTrainer(Trainer):
    """Lightning's Trainer, to which a limit of 1 is one batch, and 1.0 is all of them.

    By Lightning's own annotations, both would be all of them. Under torchrun and srun, devices and
    nodes are by default those that these have started.

    Args:
        devices: A number of devices, a list of their numbers, or ``auto``.
        num_nodes: Nodes, by default as many as torchrun or srun has started, else 1.
        accumulate_grad_batches: Batches whose gradients make one step.
        callbacks: Callbacks to add.
        limit_train_batches: Training batches of an epoch: a number, or a share from 0.0 to 1.0.
        limit_val_batches: Validation batches: a number, or a share from 0.0 to 1.0.
        limit_test_batches: Test batches: a number, or a share from 0.0 to 1.0.
        limit_predict_batches: Batches to predict: a number, or a share from 0.0 to 1.0.
        overfit_batches: Batches to train and validate on, the same in each epoch, or their share;
            0.0 is off.
        kwargs: See ``lightning.pytorch.Trainer``.
    """

    def __init__(
        self,
        *,
        devices: list[int] | str | int = "auto",
        num_nodes: PositiveInt | None = None,
        accumulate_grad_batches: PositiveInt = 1,
        callbacks: list[Callback] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        **kwargs: Any,
    ) -> None:
        started = ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "WORLD_SIZE")
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            started = ("SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS")
        tasks, nodes, processes = (int(os.environ.get(name) or 0) for name in started)
        try:
            super().__init__(
                devices=tasks or devices if devices == "auto" else devices,
                num_nodes=num_nodes or nodes or 1,
                accumulate_grad_batches=accumulate_grad_batches,
                callbacks=callbacks,
                limit_train_batches=limit_train_batches,
                limit_val_batches=limit_val_batches,
                limit_test_batches=limit_test_batches,
                limit_predict_batches=limit_predict_batches,
                overfit_batches=overfit_batches,
                **kwargs,
            )
        except (RuntimeError, TypeError, ValueError, MisconfigurationException) as error:
            raise UserError(" ".join(str(error).split()), "--trainer") from error
        advice = ""
        environment = getattr(self.strategy, "cluster_environment", None)
        if isinstance(environment, SLURMEnvironment) and not processes:  # by the script itself
            processes = 1
            advice = "; put srun before python in the script of the job"
        if isinstance(environment, LightningEnvironment):
            is_whole = "LOCAL_RANK" not in os.environ or "MASTER_PORT" in os.environ
            whole = "unset, or set with MASTER_PORT by what starts the other processes"
            require(is_whole, "LOCAL_RANK", os.environ.get("LOCAL_RANK"), whole)
            is_shell = "SLURM_PTY_PORT" in os.environ  # of srun --pty, which starts one task
            if processes > 1 and not is_shell:  # each would start all of them
                raise UserError(
                    "Lightning does not know srun in a job called interactive or bash; give the job"
                    " another name (salloc --job-name=train)"
                )
        if isinstance(self.strategy, SingleDeviceStrategy):
            # as strategies do, whatever RANK is left of another command
            rank_zero_only.rank = 0  # type: ignore[attr-defined]
        wanted = self.num_devices * self.num_nodes
        if processes not in (0, wanted):  # each would train alone, or wait for others
            raise UserError(
                f"times num_nodes is {wanted}, but the launcher started {processes}{advice}",
                "devices",
            )
        _require_exact(self.strategy, bool(kwargs.get("sync_batchnorm")))
        exact_loop(self)
        watch_processes(self.strategy.launcher)


def _require_exact(strategy: Strategy, sync_batchnorm: bool) -> None:
    """Refuses strategies of which no run would be exact, or would begin."""
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise UserError(
            f"{type(strategy).__name__} does not keep all weights on each device; use ddp",
            "strategy",
        )
    launcher = strategy.launcher
    if launcher is not None and not hasattr(launcher, "cluster_environment"):
        raise UserError(
            "forked or spawned processes cannot hand their metrics back; use ddp", "strategy"
        )
    if sync_batchnorm and isinstance(strategy, DDPStrategy) and strategy.root_device.type == "cpu":
        raise UserError("synchronises between GPUs alone", "sync_batchnorm")


def require_sound_run(trainer: Trainer, data: ImageDataModule) -> None:
    """Refuses data without batches, no test, and callbacks that would spoil a run's checkpoints."""
    data.require_usable(trainer.world_size)
    for option in ("limit_test_batches", "check_val_every_n_epoch", "val_check_interval"):
        # a time between validations is no attribute of that name
        value = getattr(trainer, option, None)
        require(value is None or value > 0, option, value, "above 0")
    for option in ("gradient_clip_val", "log_every_n_steps"):
        value = getattr(trainer, option, None)
        require(value is None or value >= 0, option, value, "0 or above")
    for kind, advice in _NOT_RESUMABLE.items():
        for callback in callbacks_of(trainer):
            if isinstance(callback, kind):
                raise UserError(
                    f"a run with {type(callback).__name__} could not resume; {advice}", "callbacks"
                )
    others = [x for x in trainer.checkpoint_callbacks if not isinstance(x, BestCheckpoint)]
    require_own_files(others, trainer.default_root_dir, {"best", "last", "previous"})


def watch_processes(launcher: object) -> None:
    """Has Linux end the processes that Lightning started when the first one ends, however it does.

    Otherwise they would wait in a collective until the backend's time limit. Lightning's observer
    ends the first one when another dies; torchrun and srun watch their own.
    """
    if not hasattr(launcher, "procs"):
        return
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        os.environ[_FIRST_PID] = str(os.getpid())
    elif _FIRST_PID in os.environ:
        end_with_parent(int(os.environ[_FIRST_PID]), signal.SIGKILL)
