"""An own network: anything that takes ``num_classes`` and returns a module.

python -m project.fit --model.arch examples.network.TinyNet
"""

from torch import Tensor, nn


class TinyNet(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps normalised images, float (N, 3, height, width), to logits, float (N, classes)."""
        logits: Tensor = self.head(self.body(x).mean((2, 3)))
        return logits
