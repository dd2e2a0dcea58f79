"""The learning rate as a curve."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from project.engine.run.loggers import is_logged
from project.model.optimizers import LR_SCALE


class LearningRate(Callback):
    """Logs ``learning_rate`` as one curve, which Lightning's ``LearningRateMonitor`` draws for each parameter group.

    Groups of ours have the same learning rate, or by ``--model.layer_decay`` a fixed share of the head's, which is
    drawn. Where they differ otherwise, each has a curve, ``learning_rate/pg1`` and so on.
    """

    def __init__(self) -> None:
        self._rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
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
            pl_module.log_dict({f"learning_rate/pg{i}": rate for i, rate in enumerate(self._rates, start=1)})
