"""The built-in data: drawn flowers, so that the first run needs no download."""

from typing import Any

import torch

from project.data.augmentation import AugmentedDataModule
from project.data.drawn.drawing import CLASS_NAMES, draw_flowers
from project.engine.errors import require
from project.engine.loading.batch import ArrayDataset
from project.engine.loading.splits import SPLITS
from project.engine.number_types import NonNegativeInt, PositiveInt
from project.engine.preprocessing import Preprocessing


class SyntheticFlowersDataModule(AugmentedDataModule):
    """Images of flowers that are drawn in memory when a run starts.

    Args:
        train_size: The number of images to train on.
        val_size: The number to validate on.
        test_size: The number to test on.
        image_size: The size of an image in pixels, by default 64, or what pretrained weights ask for.
        batch_size: Images in a batch of all devices together; ``--trainer.accumulate_grad_batches`` makes a step of several.
        crop_padding: The most pixels that a training image is shifted by; its mirrored edge fills the gap.
        kwargs: See ``AugmentedDataModule``.
    """

    class_names = list(CLASS_NAMES)

    def __init__(
        self,
        train_size: PositiveInt = 3200,
        val_size: PositiveInt = 800,
        test_size: PositiveInt = 800,
        image_size: int | None = None,
        batch_size: PositiveInt = 64,
        crop_padding: NonNegativeInt = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, crop_padding=crop_padding, **kwargs)
        self.sizes = dict(zip(SPLITS, (train_size, val_size, test_size), strict=True))
        self.image_size = 64 if image_size is None else image_size
        require(self.image_size >= 8, "--data.image_size", image_size, "at least 8")

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
        datasets: dict[str, ArrayDataset] = {}
        threads, first = torch.get_num_threads(), 0
        torch.set_num_threads(
            1
        )  # the planes are too small to share, and on a busy machine threads wait for each other
        try:
            for split, size in self.sizes.items():
                indices = torch.arange(first, first + size)
                labels = indices % len(CLASS_NAMES)
                images = draw_flowers(labels, indices, seed=self.split_seed, size=self.image_size)
                # other images have other names
                name = f"drawing for {split} (seed {self.split_seed}, after {first}), number"
                datasets[split] = ArrayDataset(images, labels, name)
                first += size
        finally:
            torch.set_num_threads(threads)
        return datasets
