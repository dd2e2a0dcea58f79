"""Curves of learning rate and speed."""

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from project.engine.run.loggers import is_logged
from project.engine.run.progress import note
from project.model.optimizers import LR_SCALE


class ImagesPerSecond(Callback):
    """Logs ``train/images_per_second``, all devices together, loading included, validation left out."""

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Prints the settings that decide the speed, once Lightning has chosen them."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
        if stage != "fit" or data is None or not trainer.is_global_zero:
            return
        layout = str(pl_module.memory_format).removeprefix("torch.")
        compiled = "compiled" if pl_module.compile_network else "not compiled"
        threads = (
            "1 thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} threads"
        )
        memory = "pinned" if data.pins_memory() else "not pinned"
        each = f"{data.workers()} per device, 1 thread each, {data.prefetch_factor} batches ahead, {memory}"
        workers = each if data.workers() else "none"
        note(f"{trainer.precision}, {layout}, {compiled}, {threads}; loader workers: {workers}")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._since, self._batches = time.perf_counter(), 0

    on_train_start = on_train_epoch_start  # where a run resumes within an epoch
    on_validation_end = on_train_epoch_start  # leaves the time of validation out

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the speed since the last time."""
        self._batches += 1
        if is_logged(trainer):
            images = self._batches * len(batch[0]) * trainer.world_size
            pl_module.log("train/images_per_second", images / (time.perf_counter() - self._since))
            self.on_train_epoch_start(trainer, pl_module)


class LearningRate(Callback):
    """Logs ``learning_rate`` as one curve, which Lightning's ``LearningRateMonitor`` draws for each parameter group.

    Groups of ours have the same learning rate, or by ``--model.layer_decay`` a fixed share of the head's, which is
    drawn. Where they differ otherwise, each has a curve, ``learning_rate/pg1`` and so on.
    """

    def __init__(self) -> None:
        self._rates: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Keeps the learning rates of this step, which a schedule changes right after it."""
        whole = [group for group in optimizer.param_groups if group.get(LR_SCALE, 1.0) == 1.0]
        self._rates = [float(group["lr"]) for group in whole or optimizer.param_groups]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs them."""
        if not is_logged(trainer):
            return
        if len(set(self._rates)) == 1:
            pl_module.log("learning_rate", self._rates[0])
        else:
            pl_module.log_dict(
                {f"learning_rate/pg{i}": rate for i, rate in enumerate(self._rates, start=1)}
            )
