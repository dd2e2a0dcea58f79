"""How many optimizer steps training takes."""

import math
from itertools import count

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from ..errors import UserError


class PlannedSteps:
    """The optimizer steps that a trainer will take, epoch by epoch.

    Lightning's ``estimated_stepping_batches`` takes the accumulation of the first epoch for that of all.

    Args:
        trainer: Before its first step; its training set is loaded to count the batches.
    """

    def __init__(self, trainer: Trainer) -> None:
        trainer.fit_loop.setup_data()  # with max_steps alone, Lightning has not counted the batches yet
        self._max_epochs, self._max_steps = trainer.max_epochs, trainer.max_steps
        self._batches = trainer.num_training_batches
        self._accumulation = trainer.accumulate_grad_batches
        self._scheduler = accumulation_scheduler(trainer)

    def accumulation(self, epoch: int) -> int:
        """How many batches make a step in an epoch; what is left over at its end makes one more."""
        return self._accumulation if self._scheduler is None else self._scheduler.get_accumulate_grad_batches(epoch)

    def in_epochs(self, epochs: float) -> float:
        """The steps of the first epochs, the last of which may be a part of one; infinite where epochs have no end."""
        whole = math.floor(epochs)
        part = (epochs - whole) * self._in_epoch(whole) if epochs > whole else 0
        return sum(self._in_epoch(epoch) for epoch in range(whole)) + part

    def _in_epoch(self, epoch: int) -> float:
        return math.ceil(self._batches / self.accumulation(epoch)) if math.isfinite(self._batches) else math.inf

    def total(self) -> int:
        """All steps of training.

        Raises:
            UserError: Training has no end.
        """
        epochs, steps = self._max_epochs, self._max_steps
        limits = [self.in_epochs(epochs)] if epochs is not None and epochs >= 0 else []
        limits += [steps] if steps >= 0 else []
        total = min(limits, default=math.inf)
        if not math.isfinite(total):
            raise UserError(
                "the cosine schedule, OneCycleLR and ProgressiveResizing must know where training ends; set"
                " --trainer.max_epochs or --trainer.max_steps"
            )
        return int(total)

    def epochs(self) -> int:
        """All epochs of training, the last of which may be a part of one.

        Raises:
            UserError: Training has no end.
        """
        total = self.total()
        return next(epochs for epochs in count(1) if self.in_epochs(epochs) >= total)

    def require_kept(self, trainer: Trainer) -> None:
        """Compares the plan with what a trainer does now.

        Raises:
            UserError: Something has changed the accumulation or the number of batches, so that steps are other than
                planned.
        """
        planned = (self._batches, self.accumulation(trainer.current_epoch))
        found = (trainer.num_training_batches, trainer.accumulate_grad_batches)
        if found != planned:
            raise UserError(
                f"the schedule was made for epochs of {planned[0]} batches, {planned[1]} of them a step, but a"
                f" callback changed that to {found[0]} and {found[1]}; use GradientAccumulationScheduler for it, or"
                " another --model.lr_scheduler"
            )


def accumulation_scheduler(trainer: Trainer) -> GradientAccumulationScheduler | None:
    """The callback that changes the accumulation from epoch to epoch, if the trainer has one."""
    callbacks: list[object] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    return next((found for found in callbacks if isinstance(found, GradientAccumulationScheduler)), None)
