"""ResNet-9: a shallow network for small images."""

from torch import Tensor, nn
from torch.nn import functional as F


class ResNet9(nn.Module):
    """A shallow ResNet for images of about 32 pixels, made to train fast.

    After Page, 2018, https://myrtle.ai/learn/how-to-train-your-resnet.

    Args:
        num_classes: The width of the head.
        width: Channels of the first convolution; the last has eight times as many.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem = _block(3, width)
        self.layer1 = _residual_group(width, 2 * width)
        self.layer2 = _block(2 * width, 4 * width, nn.MaxPool2d(2))
        self.layer3 = _residual_group(4 * width, 8 * width)
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, an eighth of the head's, which keeps them small at the start."""
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(global_max_pool(x)) / 8
        return logits


def global_max_pool(x: Tensor) -> Tensor:
    """Returns the largest value of each channel, (N, channels).

    By ``amax``, torch's compiler divides 0 by 0 in the gradient in bfloat16.
    """
    return F.max_pool2d(x, x.shape[2:], stride=1).flatten(1)


class _Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = super().forward(x)  # type: ignore[no-untyped-call]  # of torch
        return x + branch


def _residual_group(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        _block(channels, width, nn.MaxPool2d(2)),
        _Residual(_block(width, width), _block(width, width)),
    )


def _block(channels: int, width: int, *pool: nn.Module) -> nn.Sequential:
    """Builds a convolution that pools before it normalises, which takes less time."""
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False),
        *pool,
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )
