"""The built-in data: drawn flowers, so that the first run needs no download."""

from typing import Any

import torch

from project.data.drawn.drawing import CLASS_NAMES, draw_flowers
from project.data.module import ImageDataModule
from project.data.splits import SPLITS
from project.engine.errors import require
from project.engine.loading.batch import ArrayDataset
from project.engine.preprocessing import Preprocessing


class SyntheticFlowersDataModule(ImageDataModule):
    """Images of flowers that are drawn in memory when a run starts.

    Args:
        train_size: How many images there are to train on.
        val_size: How many to validate on.
        test_size: How many to test on.
        image_size: The side of an image in pixels, by default 64, or what pretrained weights ask for.
        batch_size: Images in a batch of all devices together; ``--trainer.accumulate_grad_batches`` makes a step of several.
        crop_padding: How far a training image is moved at most, in pixels; its mirrored edge fills the gap.
        kwargs: See :class:`project.data.module.ImageDataModule`.
    """

    def __init__(
        self,
        train_size: int = 3200,
        val_size: int = 800,
        test_size: int = 800,
        image_size: int | None = None,
        batch_size: int = 64,
        crop_padding: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, crop_padding=crop_padding, **kwargs)
        for name, size in {"train": train_size, "val": val_size, "test": test_size}.items():
            require(size >= 1, f"--data.{name}_size", size, "at least 1")
        self.sizes = dict(zip(SPLITS, (train_size, val_size, test_size), strict=True))
        self.image_size = 64 if image_size is None else image_size
        require(self.image_size >= 8, "--data.image_size", image_size, "at least 8")

    @property
    def class_names(self) -> list[str]:
        """The species that can be drawn."""
        return list(CLASS_NAMES)

    @property
    def preprocessing(self) -> Preprocessing:
        """The images as they are, centred roughly unless other statistics are given."""
        mean, std = self.mean or [0.5, 0.5, 0.5], self.std or [0.25, 0.25, 0.25]
        return {"resize": self.image_size, "crop": self.image_size, "mean": mean, "std": std}

    def expected_sizes(self) -> dict[str, int]:
        """The sizes that were asked for."""
        return self.sizes

    def load(self) -> dict[str, ArrayDataset]:
        """Draws all images; the classes take turns, so every split is balanced."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the planes are too small to share, and on a busy machine threads wait for each other
        try:
            return self._draw()
        finally:
            torch.set_num_threads(threads)

    def _draw(self) -> dict[str, ArrayDataset]:
        datasets: dict[str, ArrayDataset] = {}
        first = 0
        for split, size in self.sizes.items():
            indices = torch.arange(first, first + size)
            labels = indices % len(CLASS_NAMES)
            images = draw_flowers(labels, indices, seed=self.split_seed, size=self.image_size)
            which = f"drawing for {split} (seed {self.split_seed}, after {first}), number"  # others have other names
            datasets[split] = ArrayDataset(images, labels, which)
            first += size
        return datasets
