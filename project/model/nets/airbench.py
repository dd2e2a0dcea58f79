"""The network of airbench: a plain convolutional network that learns small images in a few epochs."""

from torch import Tensor, nn

from project.model.nets.whitening import WhiteningConv2d


class Airbench(nn.Module):
    """A whitening layer, six convolutions without residual connections, and a head; for images of about 32 pixels.

    After Jordan, 2024, https://arxiv.org/abs/2404.00498: each convolution begins as nearly the identity, and scales of
    BatchNorm are not trained.

    Args:
        num_classes: The width of the head.
        widths: The channels of each of the three groups of two convolutions.
    """

    def __init__(self, num_classes: int, widths: tuple[int, int, int] = (64, 256, 256)) -> None:
        super().__init__()
        self.stem = nn.Sequential(WhiteningConv2d(3, 2), nn.GELU())
        self.layer1 = _group(24, widths[0])
        self.layer2 = _group(widths[0], widths[1])
        self.layer3 = _group(widths[1], widths[2])
        self.fc = nn.Linear(widths[2], num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, a ninth of the head's, which keeps them small at the start."""
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(x.amax((2, 3))) / 9
        return logits


def _group(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        _convolution(channels, width),
        nn.MaxPool2d(2),
        _norm(width),
        nn.GELU(),
        _convolution(width, width),
        _norm(width),
        nn.GELU(),
    )


def _convolution(channels: int, width: int) -> nn.Conv2d:
    """Builds a convolution whose first kernels begin by copying a channel each."""
    convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight.data[:channels])
    return convolution


def _norm(width: int) -> nn.BatchNorm2d:
    """Builds BatchNorm whose running statistics follow quickly, as a few epochs have few steps."""
    norm = nn.BatchNorm2d(width, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm
