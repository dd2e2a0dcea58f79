"""A straight line down after the warmup, as FFCV's and airbench's schedules."""

from project.model import CosineWithWarmup


class LinearWithWarmup(CosineWithWarmup):
    """Linear warmup, then a line down to ``lrf``; it takes what ``CosineWithWarmup`` takes.

    ``OneCycleLR`` with ``anneal_strategy="linear"`` peaks a step earlier.
    """

    def factor(self, step: int) -> float:
        """Returns the fraction of the learning rate at a step."""
        if step < self.warmup_steps:
            return super().factor(step)
        progress = (step - self.warmup_steps) / max(self.total_steps - self.warmup_steps, 1)
        return 1 + (self.lrf - 1) * min(progress, 1.0)
