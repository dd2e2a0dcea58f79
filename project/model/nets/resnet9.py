"""ResNet-9: a shallow ResNet for small images, made to train fast."""

from typing import cast

from torch import Tensor, nn


class ResNet9(nn.Module):
    """A shallow ResNet for images of about 32 pixels, made to train fast.

    After Page, 2018, https://myrtle.ai/learn/how-to-train-your-resnet.

    Args:
        num_classes: The width of the head.
        width: Channels of the first convolution; the last has eight times as many.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem = _convolution(3, width)
        self.layer1 = nn.Sequential(_convolution(width, 2 * width, nn.MaxPool2d(2)), _Residual(2 * width))
        self.layer2 = _convolution(2 * width, 4 * width, nn.MaxPool2d(2))
        self.layer3 = nn.Sequential(_convolution(4 * width, 8 * width, nn.MaxPool2d(2)), _Residual(8 * width))
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, an eighth of the head's, which keeps them small at the start."""
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(x.amax((2, 3))) / 8
        return logits


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.branch(x))


def _convolution(channels: int, width: int, *pool: nn.Module) -> nn.Sequential:
    """Builds a convolution that pools before it normalises, which takes less time."""
    convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(convolution, *pool, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
