"""The head alone at first, then all layers: linear probing, then fine-tuning, in one run.

python -m project.fit --config examples/recipes/lp_ft.yaml --data FOLDER
"""

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat
from lightkeeper.exact import UserError
from torch import Tensor
from torch.optim import Optimizer

from project.model import CosineWithWarmup
from project.model.optimizers import LR_SCALE


class HeadFirst(CosineWithWarmup):
    """The head alone at its full learning rate, then ``CosineWithWarmup`` for all layers.

    Gradients of a new head make features worse (Kumar et al., 2022,
    https://arxiv.org/abs/2202.10054). ``--model.layer_decay`` below 1 gives the head its own
    parameter groups; the learning rate of all others is 0 at first.

    Args:
        optimizer: The optimizer.
        lrf: The last learning rate as a fraction of the first.
        warmup_epochs: The length of the warmup in epochs, after the head's.
        head_epochs: The length of the head's training in epochs; at most half of the training.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lrf: ClosedUnitInterval = 0.0,
        warmup_epochs: NonNegativeFloat = 0.5,
        head_epochs: NonNegativeFloat = 1.0,
    ) -> None:
        if not any(LR_SCALE in group for group in optimizer.param_groups):
            raise UserError(
                "--model.lr_scheduler HeadFirst needs --model.layer_decay below 1, and an"
                " optimizer that keeps its parameter groups"
            )
        self.head_epochs = float(head_epochs)
        self.head_steps = 0
        super().__init__(optimizer, lrf, warmup_epochs)

    def set_length(self, total_steps: int, steps_per_epoch: float) -> None:
        """Stretches the schedule over the whole training; called before the first step."""
        self.head_steps = round(min(self.head_epochs * steps_per_epoch, total_steps // 2))
        super().set_length(total_steps - self.head_steps, steps_per_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Returns the learning rate of each parameter group at the current step."""
        if self.last_epoch >= self.head_steps:
            return [rate * self.factor(self.last_epoch - self.head_steps) for rate in self.base_lrs]
        groups = zip(self.base_lrs, self.optimizer.param_groups, strict=True)
        return [rate if group[LR_SCALE] == 1 else 0.0 for rate, group in groups]
