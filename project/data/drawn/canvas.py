"""The canvas that flowers are drawn on, and their colours."""

from functools import cache

import torch
from torch import Tensor

from project.engine.randomness import uniform


class Canvas:
    """A few images in the making, ``indices`` of a dataset, and their random numbers."""

    def __init__(self, seed: int, indices: Tensor, size: int) -> None:
        self.seed, self.indices, self.pixel = seed, indices, 2 / size
        steps = (torch.arange(size) + 0.5) * self.pixel - 1
        self.x, self.y = steps.view(1, 1, size), -steps.view(1, size, 1)
        self.image = torch.zeros(len(indices), 3, size, size)

    def between(self, purpose: int, *ranges: tuple[float, float]) -> list[Tensor]:
        """Draws one random number (N, 1, 1) per range, uniform in that range."""
        draws = uniform(self.seed, 0, self.indices, purpose, len(ranges))
        return [low + (high - low) * draws[:, i, None, None] for i, (low, high) in enumerate(ranges)]

    def repeat(self, times: int, purpose: int, *ranges: tuple[float, float]) -> list[list[Tensor]]:
        """Draws one random number per range, ``times`` over."""
        draws, each = self.between(purpose, *(ranges * times)), len(ranges)
        return [draws[i * each : (i + 1) * each] for i in range(times)]

    def paint(self, colour: Tensor, alpha: Tensor) -> None:
        """Lays a colour (N, 3, 1, 1) or (N, 3, S, S) over the images, as opaque as ``alpha`` (N, S, S)."""
        self.image.lerp_(colour.expand_as(self.image), alpha[:, None])

    def cover(self, distance: Tensor, blur: float | Tensor = 0.0) -> Tensor:
        """Turns signed distances to an outline, positive inside, into how opaque a pixel is, in [0, 1]."""
        return (distance / (self.pixel + blur)).add_(0.5).clamp_(0, 1)

    def locate(self, x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Gives the pixels' coordinates along and across a direction, from a point, each (N, S, S)."""
        right, up = self.x - x, self.y - y
        return right * angle.cos() + up * angle.sin(), up * angle.cos() - right * angle.sin()


def pick(draw: Tensor, colours: tuple[str, ...]) -> Tensor:
    """Picks colours (N, 3, 1, 1) by numbers (N, 1, 1) in [0, 1)."""
    return rgb(colours)[(draw.flatten() * len(colours)).long()]


@cache
def rgb(colours: tuple[str, ...]) -> Tensor:
    """Turns K times "rrggbb" into float32 (K, 3, 1, 1)."""
    return torch.tensor([list(bytes.fromhex(colour)) for colour in colours])[..., None, None] / 255
