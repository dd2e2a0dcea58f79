"""The LightningDataModule that all data sets share: their statistics, their augmentation, and resizing to one size."""

from typing import Any

from project.data.augmentation import Flip, augment
from project.engine.errors import UserError, require
from project.engine.loading.batch import ImageBatch
from project.engine.loading.data_module import ReproducibleDataModule
from project.engine.number_types import (
    ClosedUnitInterval,
    NonNegativeInt,
    OpenUnitInterval,
    ShareAboveZero,
)
from project.engine.preprocessing import Fit, Interpolation, Preprocessing, as_colour

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class ImageDataModule(ReproducibleDataModule):
    """Images with three splits; a subclass has ``class_names``, ``preprocessing`` and ``load``.

    Args:
        flip: Mirrors half of the training images left to right; ``alternating``, each in every second epoch.
        crop_padding: Advanced: The most pixels that a training image is shifted by; its mirrored edge fills the gap.
        cutout: Covers a square of that many pixels' width in each training image; 0 covers nothing.
        mean: Advanced: Subtracted from each channel, on a scale of 0 to 1; by default that of the data, or of pretrained weights.
        std: Advanced: Divides each channel after that, on the same scale; by default as ``mean``.
        kwargs: See ``ReproducibleDataModule``.
    """

    channels = 3

    def __init__(
        self,
        flip: Flip = True,
        crop_padding: NonNegativeInt = 0,
        cutout: NonNegativeInt = 0,
        mean: list[ClosedUnitInterval] | None = None,
        std: list[ShareAboveZero] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.flip, self.crop_padding, self.cutout = flip, crop_padding, cutout
        self.mean, self.std = [*map(float, mean or ())], [*map(float, std or ())]
        for option, found in {"--data.mean": self.mean, "--data.std": self.std}.items():
            require(
                len(found) in (0, self.channels),
                option,
                found,
                f"{self.channels} numbers, one for each channel",
            )

    def augment(self, batch: ImageBatch, epoch: int) -> ImageBatch:
        """Augments a training batch of that epoch."""
        size = min(batch.images.shape[-2:])  # transforms may have changed it
        require(
            self.crop_padding < size,
            "--data.crop_padding",
            self.crop_padding,
            f"below {size}, the image size",
        )
        fill = as_colour(tuple(self.preprocessing["mean"]), batch.images.device, batch.images.dtype)
        return augment(batch, self.seed, epoch, self.flip, self.crop_padding, self.cutout, fill)

    def augmentation(self) -> list[str]:
        """Names what changes training images at random: options, and hooks that a subclass overrides."""
        options, hooks = (
            ("crop_scale", "flip", "crop_padding", "cutout"),
            ("augment", "transform_batch"),
        )
        own, base = type(self), ImageDataModule
        given = [f"--data.{name}" for name in options if getattr(self, name, None)]
        given += [
            f"{own.__name__}.{name}"
            for name in hooks
            if getattr(own, name) is not getattr(base, name)
        ]
        return [*given, *super().augmentation()]


class ResizedDataModule(ImageDataModule):
    """Images of any size, resized in loader workers.

    Args:
        image_size: The size in pixels of the square that the network sees, by default 224. Pretrained weights bring
            their own, with ``resize``, ``interpolation``, ``mean`` and ``std``.
        fit: Makes an image square. ``crop``, the default, resizes the shorter side to ``resize`` and crops the centre;
            ``pad`` resizes the longer side and adds bars of the mean colour; ``squash`` resizes both sides, which changes
            the aspect ratio. Training does the same to random crops.
        resize: Advanced: The length in pixels that the shorter side is scaled to before, by default 8/7 of ``image_size``.
        interpolation: Advanced: Scales images, always with antialiasing: ``bilinear``, the default, or ``bicubic``.
        crop_scale: The smallest and largest share of an image that a random crop in training keeps; null takes whole
            images, as evaluation does.
        val_fraction: About the share of each class that becomes validation data, if the data have no validation set.
        test_fraction: About the share of each class that becomes test data, if the data have no test set.
        kwargs: See ``ImageDataModule``.
    """

    in_memory = False

    def __init__(
        self,
        image_size: int | None = None,
        fit: Fit | None = None,
        resize: int | None = None,
        interpolation: Interpolation | None = None,
        crop_scale: tuple[ShareAboveZero, ShareAboveZero] | None = (0.08, 1.0),
        val_fraction: OpenUnitInterval = 0.1,
        test_fraction: OpenUnitInterval = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.image_size = 224 if image_size is None else image_size
        require(self.image_size >= 8, "--data.image_size", image_size, "at least 8")
        self.resize = self.image_size * 8 // 7 if resize is None else resize
        require(
            self.resize >= self.image_size,
            "--data.resize",
            resize,
            f"at least {self.image_size}, the image size",
        )
        self.fit: Fit = fit or "crop"
        self.interpolation: Interpolation = interpolation or "bilinear"
        if crop_scale is not None and crop_scale[0] > crop_scale[1]:
            raise UserError(
                f"--data.crop_scale must be two shares, as in [0.08, 1], got {list(crop_scale)}"
            )
        if val_fraction + test_fraction >= 1:
            raise UserError(
                "--data.val_fraction and --data.test_fraction must leave something to train on"
            )
        self.crop_scale = crop_scale
        # the test set first, so that it does not depend on the share of the validation set
        self.fractions = {"test": test_fraction, "val": val_fraction}

    @property
    def preprocessing(self) -> Preprocessing:
        """The options above, with ImageNet's statistics unless others are given."""
        return {
            "resize": self.resize if self.fit == "crop" else self.image_size,
            "crop": self.image_size,
            "fit": self.fit,
            "interpolation": self.interpolation,
            "mean": self.mean or IMAGENET_MEAN,
            "std": self.std or IMAGENET_STD,
        }
