"""What data modules share whose images are of any size: how they are brought to one, and how splits are cut."""

from typing import Any

from project.data.module import ImageDataModule
from project.engine.errors import UserError, require
from project.engine.preprocessing import Fit, Interpolation, Preprocessing

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class ResizedDataModule(ImageDataModule):
    """Images of any size, brought to one in loader workers.

    Args:
        image_size: The side in pixels of the square that the network sees, by default 224. Pretrained weights bring
            their own, and the four options below.
        fit: How an image becomes that square. ``crop``, the default, scales the shorter side to ``resize`` and cuts the
            centre out; ``pad`` shows the whole image, with bars of the mean colour; ``squash`` shows it without, at
            another aspect ratio. Training does the same to random crops.
        resize: The length in pixels that the shorter side is scaled to before, by default 8/7 of ``image_size``.
        interpolation: How images are scaled, always with antialiasing: ``bilinear``, the default, or ``bicubic``.
        crop_scale: The smallest and largest share of an image that a random crop in training keeps; null takes whole
            images, as evaluation does.
        val_fraction: About the share of each class that becomes validation data, where we split.
        test_fraction: About the share of each class that becomes test data, where we split.
        kwargs: See :class:`project.data.module.ImageDataModule`.
    """

    in_memory = False

    def __init__(
        self,
        image_size: int | None = None,
        fit: Fit | None = None,
        resize: int | None = None,
        interpolation: Interpolation | None = None,
        crop_scale: tuple[float, float] | None = (0.08, 1.0),
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.image_size = 224 if image_size is None else image_size
        require(self.image_size >= 8, "--data.image_size", image_size, "at least 8")
        self.fit: Fit = fit or "crop"
        self.resize = self.image_size * 8 // 7 if resize is None else resize
        require(self.resize >= self.image_size, "--data.resize", resize, f"at least {self.image_size}, the image size")
        self.interpolation: Interpolation = interpolation or "bilinear"
        if crop_scale is not None and not 0 < crop_scale[0] <= crop_scale[1] <= 1:
            raise UserError(f"--data.crop_scale must be two shares, as in [0.08, 1], got {list(crop_scale)}")
        if not (val_fraction > 0 and test_fraction > 0 and val_fraction + test_fraction < 1):
            raise UserError(
                "--data.val_fraction and --data.test_fraction must be above 0 and leave something to train on, got"
                f" {val_fraction} and {test_fraction}"
            )
        self.crop_scale = crop_scale
        # the test set first, so that it does not depend on the share of the validation set
        self.fractions = {"test": test_fraction, "val": val_fraction}

    @property
    def preprocessing(self) -> Preprocessing:
        """What the options say, with ImageNet's statistics unless others are given."""
        return {
            "resize": self.resize if self.fit == "crop" else self.image_size,
            "crop": self.image_size,
            "fit": self.fit,
            "interpolation": self.interpolation,
            "mean": self.mean or IMAGENET_MEAN,
            "std": self.std or IMAGENET_STD,
        }
