"""A straight line down after the warmup, as FFCV's and airbench's schedules."""

from examples.recipes.warmup import CosineFrom


class LinearWithWarmup(CosineFrom):
    """Linear warmup, then a line down to ``lrf``; it takes what ``CosineFrom`` takes.

    ``OneCycleLR`` with ``anneal_strategy="linear"`` peaks a step earlier.
    """

    def annealed(self, progress: float) -> float:
        """Returns what is left after a share of the way down."""
        return 1 - progress
