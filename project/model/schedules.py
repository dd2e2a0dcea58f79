"""Learning-rate schedules."""

import math


def cosine_with_warmup(step: int, *, total_steps: int, warmup_steps: int = 0, lrf: float = 0.0) -> float:
    """A linear warmup, then half a cosine from the base rate down to a fraction of it.

    The cosine is that of Loshchilov and Hutter, 2017, https://arxiv.org/abs/1608.03983.

    Args:
        step: The number of an optimizer step, from 0.
        total_steps: Optimizer steps in the whole run.
        warmup_steps: Optimizer steps of the warmup; the first is taken at ``1 / warmup_steps`` of the base rate.
        lrf: The final learning rate as a fraction of the base rate.

    Returns:
        The fraction of the base rate at which the step is taken.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return lrf + (1 - lrf) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
