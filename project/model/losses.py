"""The training loss: cross entropy, or any function of logits and labels."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat
from lightkeeper.exact import UserError
from torch import Tensor, nn
from torch.nn import functional as F

Loss = nn.Module | Callable[..., Any]
"""Takes logits, (N, classes), and labels, int64 (N,) or soft, (N, classes); returns (N,), or the mean."""


class CrossEntropy(nn.Module):
    """Cross entropy with label smoothing and class weights, each image's loss as torch's.

    Unlike torch's, its mean does not divide by the sum of the weights in a batch, which would
    depend on how devices share the batch. The weights are not a buffer, as a moving average of the
    model would average them.

    Args:
        label_smoothing: The share of each label that is spread over all classes (Szegedy et al.,
            2016, https://arxiv.org/abs/1512.00567).
        class_weights: The weight of each class, torch's ``weight``: a number for each class, or
            ``balanced``, images / (classes * images of the class), by which small classes count as
            much as large ones; ``trainer.fit`` computes it.
    """

    def __init__(
        self,
        label_smoothing: ClosedUnitInterval = 0.1,
        class_weights: Literal["balanced"] | list[NonNegativeFloat] | None = None,
    ) -> None:
        super().__init__()
        self.label_smoothing = float(label_smoothing)
        self.is_balanced = class_weights == "balanced"
        self.weights: Any = class_weights
        if isinstance(class_weights, list):
            self.weights = torch.tensor(class_weights, dtype=torch.float32)

    def prepare(self, data: Any, class_names: Sequence[str]) -> None:
        """Computes balanced weights from the data's ``class_counts()``, or checks their number."""
        if self.is_balanced:
            if data is None:
                raise UserError(
                    "--model.loss.class_weights balanced needs a data module; or give numbers"
                )
            counts = data.class_counts()
            missing = [name for name, count in zip(class_names, counts, strict=True) if not count]
            if missing:
                raise UserError(
                    "--model.loss.class_weights balanced needs images of every class, got none of"
                    f" {', '.join(missing[:5])}"
                )
            self.weights = torch.tensor([sum(counts) / (len(counts) * count) for count in counts])
        elif self.weights is not None and len(self.weights) != len(class_names):
            raise UserError(
                f"--model.loss.class_weights must be {len(class_names)} numbers, of the classes"
                f" {', '.join(class_names[:20])}, in their order, got {len(self.weights)}"
            )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's loss, float (N,), for labels (N,) or soft ones (N, classes)."""
        # as autocast does; torch requires logits and weights of one type
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.weights is not None:
            self.weights = self.weights.to(logits)  # once, as a copy waits for the device
        return F.cross_entropy(
            logits, labels, self.weights, label_smoothing=self.label_smoothing, reduction="none"
        )
