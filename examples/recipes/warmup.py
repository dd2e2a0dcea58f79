"""Warmup as published recipes have it: from a rate of its own, before the cosine or in place of its beginning."""

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat
from torch.optim import Optimizer

from project.model import CosineWithWarmup


class CosineFrom(CosineWithWarmup):
    """``CosineWithWarmup`` whose warmup starts as that of torchvision's and timm's recipes.

    Args:
        optimizer: The optimizer.
        lrf: The last learning rate as a fraction of the first.
        warmup_epochs: The length of the warmup in epochs, such as 0.5; at most half of the
            training.
        warmup_start: The learning rate of the first step as a fraction of the peak, which the first
            step after the warmup has: torch's ``LinearLR(start_factor=...)`` and timm's
            ``warmup_lr``. By default, warmup rises from the first step to its last in equal parts.
        warmup_prefix: If true, the cosine begins after the warmup, as by torch's ``SequentialLR``;
            if false, the warmup replaces the beginning of it, as timm does by default.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lrf: ClosedUnitInterval = 0.01,
        warmup_epochs: NonNegativeFloat = 1.0,
        warmup_start: ClosedUnitInterval | None = None,
        warmup_prefix: bool = True,
    ) -> None:
        self.warmup_start = None if warmup_start is None else float(warmup_start)
        self.warmup_prefix = warmup_prefix
        super().__init__(optimizer, lrf, warmup_epochs)

    def factor(self, step: int) -> float:
        """Returns the fraction of the learning rate at a step."""
        if step < self.warmup_steps and self.warmup_start is not None:
            return self.warmup_start + (1 - self.warmup_start) * step / self.warmup_steps
        if step < self.warmup_steps or self.warmup_prefix:
            return super().factor(step)
        return self.lrf + (1 - self.lrf) * self.annealed(min(step / self.total_steps, 1.0))
