"""Random erasing by the mean colour or by noise, as of normalised images.

python -m project.fit --data.train_transforms+=examples.recipes.erasing.NormalizedErasing \
    --data.train_transforms.value random
"""

from typing import Literal

import torch
from jsonargparse.typing import ClosedUnitInterval
from torch import Tensor
from torchvision.transforms.v2 import RandomErasing

_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)  # ImageNet's
_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class NormalizedErasing:
    """Torchvision's ``RandomErasing`` where the references of torchvision and timm have it.

    Those erase after normalisation: by 0, which is the mean colour, or by normal noise, which is
    timm's ``--remode pixel``. Noise is clipped to 0-255 here.

    Args:
        p: The share of images with an erased rectangle.
        value: 0 or another number of standard deviations from the mean, or ``random``.
    """

    def __init__(
        self, p: ClosedUnitInterval = 0.25, value: float | Literal["random"] = 0.0
    ) -> None:
        self._erase = RandomErasing(p, value=value)  # type: ignore[arg-type]  # it takes "random"

    def __call__(self, image: Tensor) -> Tensor:
        """Erases a rectangle of an image, uint8 (3, height, width)."""
        erased: Tensor = self._erase((image / 255 - _MEAN) / _STD)
        return ((erased * _STD + _MEAN) * 255).round().clamp(0, 255).to(torch.uint8)
