"""The training loss: cross entropy, or any class or function that returns each image's loss."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jsonargparse.typing import ClosedUnitInterval
from torch import Tensor, nn
from torch.nn import functional as F

from project.engine import UserError

Loss = nn.Module | Callable[..., Any]
"""Takes logits, (N, classes), and labels, int64 (N,) or soft, (N, classes); returns (N,)."""

_WEIGHTS = "--model.loss.class_weights"


class CrossEntropy(nn.Module):
    """Cross entropy with label smoothing and class weights.

    Unlike torch's weighted mean, it does not divide by the sum of the weights in a batch, which
    would depend on how devices share the batch. The weights are not a buffer, as a moving average
    of the model would average them.

    Args:
        label_smoothing: The share of each label that is spread over all classes (Szegedy et al.,
            2016, https://arxiv.org/abs/1512.00567).
        class_weights: The factor of each image's loss by its class: a number for each class, or
            ``balanced``, images / (classes * images of the class), by which small classes count as
            much as large ones.
    """

    def __init__(
        self,
        label_smoothing: ClosedUnitInterval = 0.1,
        class_weights: Literal["balanced"] | list[float] | None = None,
    ) -> None:
        super().__init__()
        self.label_smoothing = float(label_smoothing)
        self.class_weights = class_weights
        self._weights = (
            torch.tensor(class_weights, dtype=torch.float32)
            if isinstance(class_weights, list)
            else None
        )

    def prepare(self, data: Any, class_names: Sequence[str]) -> None:
        """Computes balanced weights from the data's ``class_counts()``, or checks the user's."""
        classes = len(class_names)
        if self.class_weights == "balanced":
            if not hasattr(data, "class_counts"):
                raise UserError(
                    f"{_WEIGHTS} balanced needs a data module with class_counts(); give {classes}"
                    " numbers instead"
                )
            counts = data.class_counts()
            missing = [name for name, count in zip(class_names, counts, strict=True) if not count]
            if missing:
                raise UserError(
                    f"{_WEIGHTS} balanced needs images of every class, got none of"
                    f" {', '.join(missing[:5])}"
                )
            self._weights = torch.tensor([sum(counts) / (classes * count) for count in counts])
        elif self.class_weights is not None:
            are_valid = all(0 <= weight < math.inf for weight in self.class_weights)
            if not (are_valid and any(self.class_weights) and len(self.class_weights) == classes):
                raise UserError(
                    f"{_WEIGHTS} must be 'balanced' or {classes} numbers from 0 that are not all 0,"
                    f" got {self.class_weights}"
                )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's loss, float (N,); soft labels average the weights."""
        losses = F.cross_entropy(
            logits, labels, label_smoothing=self.label_smoothing, reduction="none"
        )
        if self.class_weights is None:
            return losses
        if self._weights is None:
            raise UserError(
                f"{_WEIGHTS} balanced is computed when trainer.fit starts; outside of it, give the"
                " numbers"
            )
        self._weights = weights = self._weights.to(losses.device)
        return losses * (
            weights[labels] if labels.dim() == 1 else labels.to(weights.dtype) @ weights
        )
