"""The data set of image files."""

from pathlib import Path

import torch
from torch import Tensor

from project.checkpoint import Preprocessing
from project.data.batch import ImageBatch
from project.data.decode import centre_box, crop_and_resize, open_image, random_box
from project.data.hashing import Purpose, uniform
from project.errors import UnreadableFileError

_CROP_TRIES = 10


class FileDataset:
    """Image files, decoded and cropped when a batch asks for them.

    Args:
        files: The image files.
        labels: int64 (N,).
        preprocessing: Gives the sizes.
        crop_scale: The smallest and largest share of a picture that a random crop keeps; None cuts from the centre.
        seed: Decides the random crops.
        skip: Whether a file that cannot be read comes as a black picture with the label -1, and is no error.
    """

    def __init__(
        self,
        files: list[Path],
        labels: Tensor,
        preprocessing: Preprocessing,
        crop_scale: tuple[float, float] | None = None,
        seed: int = 0,
        skip: bool = False,
    ) -> None:
        self.files, self.labels = files, labels
        self.resize, self.crop = preprocessing["resize"], preprocessing["crop"]
        self.crop_scale, self.seed, self.skip = crop_scale, seed, skip

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        indices = torch.tensor(keys) % len(self)
        labels = self.labels[indices]
        images = torch.zeros(len(keys), 3, self.crop, self.crop, dtype=torch.uint8)
        for position, key in enumerate(keys):
            try:
                images[position] = self._crop(*divmod(key, len(self)))
            except UnreadableFileError:
                if not self.skip:
                    raise
                labels[position] = -1
        return ImageBatch(images, labels, indices)

    def image(self, index: int) -> Tensor:
        """One picture as evaluation sees it, uint8 (3, crop, crop)."""
        file = self.files[index]
        with open_image(file) as picture:
            return crop_and_resize(picture, centre_box(*picture.size, self.resize, self.crop), self.crop, file)

    def name(self, index: int) -> str:
        """The file's class folder and name."""
        return str(Path(*self.files[index].parts[-2:]))

    def _crop(self, epoch: int, index: int) -> Tensor:
        if self.crop_scale is None:
            return self.image(index)
        draws = uniform(self.seed, epoch, torch.tensor([index]), Purpose.CROP, 4 * _CROP_TRIES).view(_CROP_TRIES, 4)
        file = self.files[index]
        with open_image(file) as picture:
            return crop_and_resize(picture, random_box(*picture.size, draws, self.crop_scale), self.crop, file)
