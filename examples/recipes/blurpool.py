"""Networks of torchvision that blur before each convolution with a stride, as FFCV's ResNets.

python -m project.fit --model.arch examples.recipes.blurpool.blurpool --model.arch_args.arch resnet50
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import get_model  # type: ignore[attr-defined]  # not in its __all__

_FEWEST = 16  # channels; the stem sees the image itself


class BlurConv2d(nn.Conv2d):
    """A convolution of blurred input, which a stride would otherwise alias.

    Zhang, 2019, https://arxiv.org/abs/1904.11486; blurring comes first, as in
    https://github.com/libffcv/ffcv-imagenet. The names of the weights stay.

    Args:
        conv: The convolution whose weights it takes.
    """

    blur: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]  # a tuple of any length
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,  # type: ignore[arg-type]
            conv.groups,
            bias=conv.bias is not None,
        )
        self.load_state_dict(conv.state_dict())
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        kernel = line.outer(line).repeat(conv.in_channels, 1, 1, 1)
        self.register_buffer("blur", kernel, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Blurs and convolves, (N, channels, height, width)."""
        blurred = F.conv2d(x, self.blur.to(x.dtype), padding=1, groups=self.in_channels)
        return super().forward(blurred)


def blurpool(num_classes: int, arch: str = "resnet50") -> nn.Module:
    """Builds a network of torchvision with blurred input of convolutions with a stride."""
    network: nn.Module = get_model(arch, num_classes=num_classes)
    for name, module in [*network.named_modules()]:
        is_strided = isinstance(module, nn.Conv2d) and max(module.stride) > 1
        if is_strided and module.in_channels >= _FEWEST:
            network.set_submodule(name, BlurConv2d(module))
    return network
