"""SAM: steps by the gradient at the worst weights nearby (Foret et al., 2020, https://arxiv.org/abs/2010.01412).

python -m project.fit --model examples.sam.SAMClassifier --model.rho 0.05
"""

from collections.abc import Callable
from typing import Any

import torch
from lightkeeper.exact import UserError
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from project.model import ImageClassifier


class SAMClassifier(ImageClassifier):
    """Computes two gradients a step, for any optimizer; the first says where the loss rises most.

    On several devices, that is the gradient of the whole batch.

    Args:
        rho: The distance to the weights of the second gradient.
        kwargs: See :class:`project.model.classifier.ImageClassifier`.
    """

    def __init__(self, rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rho = rho
        self.is_uphill = False

    def on_fit_start(self) -> None:
        """Refuses steps of several batches, of which the second gradient would miss all but one."""
        if self.trainer.accumulate_grad_batches > 1:
            raise UserError("must be 1 with SAM", "--trainer.accumulate_grad_batches")

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Takes a step from the weights, which move uphill for the second gradient only."""
        assert optimizer_closure is not None
        optimizer_closure()
        weights = {weight: weight.grad for weight in self.parameters() if weight.grad is not None}
        # with BatchNorm's statistics, which are those of the first pass
        before = {tensor: tensor.detach().clone() for tensor in (*weights, *self.buffers())}
        scale = self.rho / (get_total_norm(weights.values()) + 1e-12)
        with torch.no_grad():
            for weight, gradient in weights.items():
                weight.add_(scale * gradient)

        def gradient_uphill() -> Any:
            self.is_uphill = True
            loss = optimizer_closure()
            self.is_uphill = False
            with torch.no_grad():
                for tensor, value in before.items():
                    tensor.copy_(value)
            return loss

        super().optimizer_step(epoch, batch_idx, optimizer, gradient_uphill)

    def measure(self, split: Any, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Measures each batch once."""
        if not self.is_uphill:
            super().measure(split, logits, labels, loss)
