"""RandAugment of timm, for images in the workers; needs ``pip install timm``.

python -m project.fit --data.train_transforms+=examples.recipes.timm_transforms.RandAugment
"""

from functools import cache

from PIL import Image
from timm.data.auto_augment import RandAugment as Operations, rand_augment_transform
from timm.data.constants import IMAGENET_DEFAULT_MEAN
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image


class RandAugment:
    """Random operations as timm's ``--aa`` describes them.

    Torchvision's RandAugment has neither magnitudes that vary, ``mstd``, nor operations that are
    stronger the larger the magnitude, ``inc1``.

    Args:
        config: Such as ``rand-m7-mstd0.5-inc1``; see ``timm.data.rand_augment_transform``.
    """

    def __init__(self, config: str = "rand-m9-mstd0.5-inc1") -> None:
        self.config = config
        _operations(config, 224)  # a mistake ends the run before it trains

    def __call__(self, image: Tensor) -> Tensor:
        """Changes an image, uint8 (3, height, width)."""
        operations = _operations(self.config, min(image.shape[1:]))
        changed: Image.Image = operations(to_pil_image(image))  # type: ignore[no-untyped-call]
        return pil_to_tensor(changed)


@cache
def _operations(config: str, size: int) -> Operations:
    """Builds the operations, whose shifts and fill colour are those of timm's training."""
    fill = tuple(round(255 * channel) for channel in IMAGENET_DEFAULT_MEAN)
    options = {"translate_const": int(size * 0.45), "img_mean": fill}
    operations: Operations = rand_augment_transform(config, options)
    return operations
