"""An own callback: the norm of the gradients as a curve in TensorBoard.

python -m project.fit --trainer.callbacks+=examples.callback.GradientNorm
"""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer


class GradientNorm(Callback):
    """Logs ``train/gradient_norm``, before clipping, at the steps that are logged."""

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Measures it."""
        if (trainer.global_step + 1) % (trainer.log_every_n_steps or 1) == 0:  # type: ignore[attr-defined]  # set by a connector
            gradients = [
                weight.grad for weight in pl_module.parameters() if weight.grad is not None
            ]
            pl_module.log("train/gradient_norm", get_total_norm(gradients))
