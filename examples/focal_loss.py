"""An own loss: the focal loss, which counts easy images less (Lin et al., 2017, https://arxiv.org/abs/1708.02002).

python -m project.fit --model.loss examples.focal_loss.FocalLoss --model.loss.gamma 2
"""

from torch import Tensor, nn
from torch.nn import functional as F


class FocalLoss(nn.Module):
    """Cross entropy times (1 - p)^gamma, where p is the probability of the true class."""

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's loss, float (N,), by labels, int64 (N,), or soft ones, float (N, classes)."""
        shares = labels if labels.dim() == 2 else F.one_hot(labels, logits.shape[1])
        log_p = logits.log_softmax(1)
        return -(shares * (1 - log_p.exp()) ** self.gamma * log_p).sum(1)
