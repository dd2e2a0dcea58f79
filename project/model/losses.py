"""The training loss: cross entropy, or any class or function that returns each image's loss."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from project.engine.errors import UserError, listed, require

Loss = nn.Module | Callable[..., Any]
"""Takes logits, float (N, classes), and labels, int64 (N,) or soft, float (N, classes); returns float (N,)."""

_WEIGHTS = "--model.loss.class_weights"


class CrossEntropy(nn.Module):
    """Cross entropy with smoothed labels and weights of the classes.

    Unlike torch's weighted mean, it does not divide by the sum of the weights in a batch, which would depend on how devices
    share the batch. The weights are no buffer: a moving average of the model would average them.

    Args:
        label_smoothing: The share of each label that is spread over all classes (Szegedy et al., 2016,
            https://arxiv.org/abs/1512.00567).
        class_weights: The factor of each image's loss by its class: a number for each class, or ``balanced``,
            images / (classes * images of the class), by which small classes count as much as large ones.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        class_weights: Literal["balanced"] | list[float] | None = None,
    ) -> None:
        super().__init__()
        require(
            0 <= label_smoothing <= 1,
            "--model.loss.label_smoothing",
            label_smoothing,
            "from 0 to 1",
        )
        self.label_smoothing, self.class_weights = label_smoothing, class_weights
        self._weights = (
            torch.tensor(class_weights, dtype=torch.float32)
            if isinstance(class_weights, list)
            else None
        )

    def prepare(self, data: Any, class_names: Sequence[str]) -> None:
        """Computes, before training, balanced weights from the data module's ``class_counts()``, or checks those that were given."""
        if self.class_weights == "balanced":
            if not hasattr(data, "class_counts"):
                raise UserError(
                    f"{_WEIGHTS} balanced needs a data module with class_counts(); give {len(class_names)} numbers instead"
                )
            counts = data.class_counts()
            if empty := [
                name for name, count in zip(class_names, counts, strict=True) if count == 0
            ]:
                raise UserError(
                    f"{_WEIGHTS} balanced needs images of every class, got none of {listed(empty, 5)}"
                )
            self._weights = torch.tensor([sum(counts) / (len(counts) * count) for count in counts])
        elif (given := self.class_weights) is not None:
            usable = (
                len(given) == len(class_names)
                and all(0 <= one < math.inf for one in given)
                and any(given)
            )
            require(
                usable,
                _WEIGHTS,
                given,
                f"'balanced' or {len(class_names)} numbers from 0 that are not all 0",
            )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's loss, float (N,); soft labels get the mean of the weights by their shares."""
        losses = F.cross_entropy(
            logits, labels, label_smoothing=self.label_smoothing, reduction="none"
        )
        if self.class_weights is None:
            return losses
        if self._weights is None:
            raise UserError(
                f"{_WEIGHTS} balanced is computed when trainer.fit starts; outside of it, give the numbers"
            )
        self._weights = self._weights.to(losses.device)
        return losses * (
            self._weights[labels]
            if labels.dim() == 1
            else labels.to(self._weights.dtype) @ self._weights
        )
