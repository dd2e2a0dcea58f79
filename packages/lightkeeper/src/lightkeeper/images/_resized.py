"""The base of data modules whose images have any size: resized and cropped in loader workers."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, cast, get_args

from jsonargparse.typing import OpenUnitInterval, PositiveInt

from ..exact._errors import require
from ._data_module import ImageDataModule
from ._preprocessing import Fit, Interpolation, Preprocessing, Size, is_preprocessing, sides_of
from ._splits import hashed_split

_Size: TypeAlias = PositiveInt | tuple[PositiveInt, PositiveInt]

IMAGENET_MEAN = [0.485, 0.456, 0.406]
IMAGENET_STD = [0.229, 0.224, 0.225]


class ResizedDataModule(ImageDataModule):
    """Images of any size, resized in loader workers.

    Args:
        image_size: The pixels of each side that the network sees, by default 224; or height and
            width, as in ``[128,512]``. Pretrained weights bring their own, with ``resize``,
            ``interpolation``, ``mean`` and ``std``.
        fit: How an image gets that shape: ``crop``, ``pad`` or ``squash``. ``crop``, the default,
            resizes the image to cover ``resize`` and crops the centre; ``pad`` resizes the longer
            side and adds bars of the mean colour; ``squash`` resizes both sides, which changes the
            aspect ratio. Training does the same to random crops.
        resize: Advanced: The pixels that the shorter side is scaled to before, or a height and
            width to cover. By default 8/7 of ``image_size``.
        interpolation: Advanced: Scales images, always with antialiasing: ``bilinear``, the default,
            or ``bicubic``.
        train_size: The pixels of each side in training, by default ``image_size``. Less costs less,
            and larger images in evaluation can be more accurate.
        train_interpolation: Advanced: Scales training images, by default as ``interpolation``;
            ``random`` chooses one for each random crop.
        crop_scale: The smallest and largest share of an image that a random crop keeps. Null takes
            whole images in training, as evaluation does.
        val_fraction: The share of validation images, about, if the data have no such set.
        test_fraction: The share of test images, about, if the data have no such set.
        kwargs: See ``ImageDataModule``.
    """

    def __init__(
        self,
        image_size: _Size | None = None,
        fit: Fit | None = None,
        resize: _Size | None = None,
        interpolation: Interpolation | None = None,
        train_size: _Size | None = None,
        train_interpolation: Interpolation | Literal["random"] | None = None,
        crop_scale: tuple[float, float] | None = (0.08, 1.0),
        val_fraction: OpenUnitInterval = 0.1,
        test_fraction: OpenUnitInterval = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sizes = {"image_size": image_size, "resize": resize, "train_size": train_size}
        for option, size in sizes.items():
            usable = size is None or sides_of(size)
            require(bool(usable), option, size, "pixels, or [height, width], from 1 to 4096")
        self.image_size = _plain(image_size or 224)
        self.resize = _plain(resize or [side * 8 // 7 for side in sides_of(self.image_size)])
        self.fit: Fit = fit or "crop"
        self.interpolation: Interpolation = interpolation or "bilinear"
        self.train_size = train_size
        self.train_interpolation = train_interpolation
        smallest, largest = crop_scale or (1, 1)
        require(
            0 < smallest <= largest <= 1,
            "crop_scale",
            [smallest, largest],
            "two shares, as in [0.08, 1]",
        )
        require(
            val_fraction + test_fraction < 1,
            "val_fraction",
            f"{val_fraction} and {test_fraction}",
            "below 1 together with test_fraction",
        )
        self.crop_scale = crop_scale
        require(
            crop_scale is not None or train_interpolation != "random",
            "train_interpolation",
            train_interpolation,
            "left out or of one kind without random crops, as crop_scale is null",
        )
        # the test set first, so that it does not depend on the share of the validation set
        self.fractions = {"test": test_fraction, "val": val_fraction}

    @property
    def preprocessing(self) -> Preprocessing:
        """The options above, with ImageNet's statistics unless others are given."""
        steps: Preprocessing = {
            "resize": self.resize if self.fit == "crop" else self.image_size,
            "crop": self.image_size,
            "fit": self.fit,
            "interpolation": self.interpolation,
            "mean": self.mean or IMAGENET_MEAN,
            "std": self.std or IMAGENET_STD,
        }
        sound = is_preprocessing({"bits": 8, **steps})  # with any number of channels
        require(
            sound,
            "image_size",
            steps,
            "1 <= image_size (crop) <= resize <= 4096, with finite means and deviations above 0",
        )
        return steps

    @property
    def train_preprocessing(self) -> list[Preprocessing]:
        """The steps that fit training images; each gets one of these at random."""
        steps = self.preprocessing
        crop = self.train_size or steps["crop"]
        sides = map(sides_of, (steps["resize"], crop, steps["crop"]))
        resize = [whole * train // size for whole, train, size in zip(*sides, strict=True)]
        sizes = {"crop": _plain(crop), "resize": _plain(resize)}
        kind = self.train_interpolation or steps.get("interpolation", "bilinear")
        kinds = get_args(Interpolation) if kind == "random" else [kind]
        return [cast(Preprocessing, {**steps, **sizes, "interpolation": kind}) for kind in kinds]

    def hashed_split(self, names: Iterable[str]) -> dict[str, list[int]]:
        """Cuts files with these names into splits by hashes of the names; returns positions."""
        return hashed_split(names, self.fractions, self.split_seed, "all images")


def _plain(size: Size) -> int | list[int]:
    """Returns one number for a square, and otherwise height and width, as checkpoints hold them."""
    height, width = sides_of(size)
    return height if height == width else [height, width]
