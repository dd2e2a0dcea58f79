"""The data set of image files."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from project.data.batch import ImageBatch
from project.data.cache import ImageCache, open_cache
from project.data.crops import centre_crop, random_box, reduced_box, scaled_region, sufficient_size
from project.data.decode import decode, open_image, upright_size
from project.data.randomness import Purpose, uniform
from project.errors import UnreadableFileError, printable
from project.run.checkpoint import Preprocessing

_CROP_TRIES = 10


class FileDataset:
    """Image files, decoded and cropped when a batch asks for them.

    Args:
        files: The image files.
        labels: int64 (N,).
        preprocessing: Gives the sizes.
        crop_scale: The smallest and largest share of an image that a random crop keeps; None cuts from the centre.
        seed: Decides the random crops.
        skip: Whether a file that cannot be read comes as a black image with the label -1, and is no error.
        cache: A folder for decoded images, by which later epochs and runs are faster. Training then crops from images
            whose shorter side is scaled down to ``resize``.
        sizes: Width and height of each upright image in pixels, for the cache of training images.
    """

    def __init__(
        self,
        files: list[Path],
        labels: Tensor,
        preprocessing: Preprocessing,
        crop_scale: tuple[float, float] | None = None,
        seed: int = 0,
        skip: bool = False,
        cache: Path | None = None,
        sizes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.files, self.labels = files, labels
        self.resize, self.crop = preprocessing["resize"], preprocessing["crop"]
        self.crop_scale, self.seed, self.skip = crop_scale, seed, skip
        self.cache = self._open_cache(cache, sizes) if cache is not None and files else None

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        indices = torch.tensor(keys) % len(self)
        labels = self.labels[indices]
        shape = (len(keys), 3, self.crop, self.crop)
        # as decoders write them and the network wants them
        images = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        draws = uniform(self.seed, keys[0] // len(self), indices, Purpose.CROP, 4 * _CROP_TRIES)  # all of one epoch
        for position, index in enumerate(indices.tolist()):
            try:
                images[position] = self._crop(index, draws[position].view(_CROP_TRIES, 4))
            except UnreadableFileError:
                if not self.skip:
                    raise
                images[position], labels[position] = 0, -1
        return ImageBatch(images, labels, indices)

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (3, crop, crop)."""
        if self.cache is not None and self.crop_scale is None:
            return self.cache.fetch(index, lambda: self._centre(index))
        return self._centre(index)

    def name(self, index: int) -> str:
        """The file's class folder and name, fit to print."""
        return printable(Path(*self.files[index].parts[-2:]))

    def _centre(self, index: int) -> Tensor:
        file = self.files[index]
        with open_image(file) as image:
            return centre_crop(decode(image, file), self.resize, self.crop)

    def _crop(self, index: int, draws: Tensor) -> Tensor:
        if self.crop_scale is None:
            return self.image(index)
        file = self.files[index]
        if self.cache is not None:
            small = self.cache.fetch(index, lambda: self._small(index))
            box = random_box(small.shape[2], small.shape[1], draws, self.crop_scale)
            return scaled_region(small, box, (self.crop, self.crop))
        with open_image(file) as image:
            size = upright_size(image, file)
            box = random_box(*size, draws, self.crop_scale)
            pixels = decode(image, file, sufficient_size(size, box, self.crop))
        return scaled_region(pixels, reduced_box(box, size, pixels), (self.crop, self.crop))

    def _small(self, index: int) -> Tensor:
        file = self.files[index]
        with open_image(file) as image:
            height, width = shape = self._small_shape(upright_size(image, file))
            pixels = decode(image, file, (width, height))
        return scaled_region(pixels, (0, 0, pixels.shape[2], pixels.shape[1]), shape)

    def _small_shape(self, size: tuple[int, int]) -> tuple[int, int]:
        width, height = size
        scale = min(1.0, self.resize / min(width, height))
        return max(1, round(height * scale)), max(1, round(width * scale))

    def _open_cache(self, folder: Path, sizes: Sequence[tuple[int, int]]) -> ImageCache | None:
        if self.crop_scale is None:
            shapes = [(self.crop, self.crop)] * len(self)
            return open_cache(folder, self.files, shapes, f"centre crop {self.resize} {self.crop}")
        shapes = [self._small_shape(size) for size in sizes]
        return open_cache(folder, self.files, shapes, f"shorter side {self.resize}")
