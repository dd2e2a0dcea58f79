"""Measures variants in turns, so that what slows the machine for a while slows all of them."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Measure = Callable[[int], float]
"""Measures one variant once, given the number of the round, from 0."""


class StepClock:
    """Times steps on a device after a warmup, in which memory is allocated and algorithms are chosen."""

    def __init__(self, warmup: int, steps: int, device: torch.device) -> None:
        self.warmup, self.steps, self.device = warmup, steps, device
        self._done, self._seconds = 0, 0.0

    def tick(self) -> None:
        """Counts a finished step."""
        self._done += 1
        if self._done in (self.warmup, self.warmup + self.steps):
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self._seconds = time.perf_counter() - self._seconds

    def rate(self, images: int) -> float:
        """Returns images per second for steps of so many images."""
        if self._done < self.warmup + self.steps:
            raise RuntimeError(
                f"only {self._done} of {self.warmup} + {self.steps} steps were taken"
            )
        return self.steps * images / self._seconds


def in_turns(variants: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Measures A B C, A B C, …; returns the value of each round by variant."""
    values: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(rounds):
        for name, measure in variants.items():
            values[name].append(measure(round_))
    return values


def ratios(values: list[float], base: list[float]) -> list[float]:
    """Divides the values of two variants round by round."""
    return [value / other for value, other in zip(values, base, strict=True)]


def spread(values: list[float], digits: int) -> str:
    """Formats the median, with minimum and maximum in brackets."""
    median, low, high = (f"{f(values):,.{digits}f}" for f in (statistics.median, min, max))
    return f"{median} ({low} to {high})"
