"""Random images that lie on the device, so that loading takes no time."""

from typing import Any

import torch
from torch import Tensor

from project.data.module import IMAGENET_MEAN, IMAGENET_STD, ImageDataModule
from project.data.splits import SPLITS
from project.engine.loading.batch import ArrayDataset, ImageBatch
from project.engine.preprocessing import Preprocessing


class RandomImagesDataModule(ImageDataModule):
    """The same random images in each split, without augmentation.

    Args:
        size: How many there are.
        image_size: Width and height in pixels.
        classes: How many classes there are.
        device: Where they lie.
        kwargs: See :class:`project.data.module.ImageDataModule`.
    """

    def __init__(self, size: int, image_size: int, classes: int = 10, device: str = "cpu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size, self.image_size, self.classes, self.device = size, image_size, classes, device

    def pins_memory(self) -> bool:
        """Returns False: only what is not on the device yet can be pinned."""
        return False

    @property
    def class_names(self) -> list[str]:
        """Numbers."""
        return [str(label) for label in range(self.classes)]

    @property
    def preprocessing(self) -> Preprocessing:
        """ImageNet's statistics."""
        return {"resize": self.image_size, "crop": self.image_size, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}

    def load(self) -> dict[str, ArrayDataset]:
        """Makes the images, on any device the same."""
        random = torch.Generator().manual_seed(0)
        images = torch.randint(
            0, 256, (self.size, 3, self.image_size, self.image_size), dtype=torch.uint8, generator=random
        )
        labels = torch.randint(0, self.classes, (self.size,), generator=random)
        data = ArrayDataset(images.to(self.device), labels.to(self.device), "random image")
        return dict.fromkeys(SPLITS, data)

    def training_batches(self) -> list[ImageBatch]:
        """What training gives the model in the first epoch, in that order."""
        self.setup("fit")
        return list(self.train_dataloader())


def as_tutorials_do(batch: ImageBatch) -> tuple[Tensor, Tensor]:
    """The images as a loader with ``ToTensor`` and ``Normalize`` gives them, float32, and their labels."""
    mean, std = (torch.tensor(values, device=batch.images.device) for values in (IMAGENET_MEAN, IMAGENET_STD))
    images = (batch.images.float() / 255 - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)
    return images.contiguous(), batch.labels
