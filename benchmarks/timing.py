"""Measuring variants in turns, and comparing them round by round."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Measure = Callable[[int], float]
"""Measures one variant once; it is given the number of the round, from 0."""


class StepClock:
    """Times steps after a few that are not counted, in which memory is found and algorithms are chosen.

    Args:
        warm_up: How many steps are not counted, at least 1.
        steps: How many are.
        device: What computes them; a GPU is waited for.
    """

    def __init__(self, warm_up: int, steps: int, device: torch.device) -> None:
        self.warm_up, self.steps, self.device = warm_up, steps, device
        self._done, self._began, self._ended = 0, 0.0, 0.0

    def tick(self) -> None:
        """Notes that a step is done."""
        self._done += 1
        if self._done == self.warm_up:
            self._began = self._now()
        elif self._done == self.warm_up + self.steps:
            self._ended = self._now()

    def rate(self, images: int) -> float:
        """Images per second.

        Args:
            images: How many a step has.
        """
        if self._done < self.warm_up + self.steps:
            raise RuntimeError(f"only {self._done} of {self.warm_up} + {self.steps} steps were taken")
        return self.steps * images / (self._ended - self._began)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass(frozen=True)
class Section:
    """What was measured of variants that do the same work.

    Attributes:
        name: A short name.
        title: What is measured, for people.
        unit: Of the values.
        values: By variant, the value of each round. The first variant is what the others are compared with.
        pair: Two more variants that are compared, the second being the base.
    """

    name: str
    title: str
    unit: str
    values: dict[str, list[float]]
    pair: tuple[str, str] | None = None

    def ratios(self, variant: str, base: str | None = None) -> list[float]:
        """A variant's values in shares of another's, or of the first one's, in the same round each."""
        bases = self.values[base if base is not None else next(iter(self.values))]
        return [value / other for value, other in zip(self.values[variant], bases, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        variants = [
            {"name": name, **_spread("values", values), "compared": _spread("ratios", self.ratios(name))}
            for name, values in self.values.items()
        ]
        found: dict[str, Any] = {"name": self.name, "title": self.title, "unit": self.unit, "variants": variants}
        if self.pair is not None:
            variant, base = self.pair
            found["pair"] = {"variant": variant, "base": base, **_spread("ratios", self.ratios(variant, base))}
        return found


def _spread(name: str, values: list[float]) -> dict[str, Any]:
    return {name: values, "median": statistics.median(values), "min": min(values), "max": max(values)}


def in_turns(variants: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Measures A B C, A B C, and so on, so that what slows the machine for a while slows all of them.

    Args:
        variants: What measures each variant once.
        rounds: How many times.

    Returns:
        By variant, the value of each round.
    """
    values: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(rounds):
        for name, measure in variants.items():
            values[name].append(measure(round_))
    return values
