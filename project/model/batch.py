"""What a step of the model needs of a batch."""

from typing import Protocol

from torch import Tensor


class Batch(Protocol):
    """Images and their labels, see ``project.data.batch``."""

    @property
    def images(self) -> Tensor:
        """uint8 (N, 3, height, width)."""

    @property
    def labels(self) -> Tensor:
        """int64 (N,)."""
