"""CIFAR-10: 60,000 images of 32 pixels in ten classes (Krizhevsky, 2009)."""

from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, OpenUnitInterval, PositiveInt
from lightkeeper.images import ArrayDataset, Preprocessing
from torchvision.datasets import CIFAR10

from project.data.augmentation import AugmentedDataModule


class CIFAR10DataModule(AugmentedDataModule):
    """CIFAR-10 in memory: 45,000 training and 5,000 validation images, and the 10,000 test images.

    Args:
        root: The folder that ``cifar-10-batches-py`` is in, or is downloaded to.
        batch_size: Images in a batch of all devices together; ``--trainer.accumulate_grad_batches``
            makes a step of several.
        crop_padding: The most pixels that a training image is shifted by; its mirrored edge fills
            the gap.
        val_fraction: The share of each class's training images that becomes the validation set.
        train_fraction: The share of each class's training images to train on. A smaller share is
            part of a larger one; the other splits stay as they are.
        kwargs: See ``AugmentedDataModule``.
    """

    class_names = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]

    def __init__(
        self,
        root: str = "data",
        batch_size: PositiveInt = 128,
        crop_padding: NonNegativeInt = 4,
        val_fraction: OpenUnitInterval = 0.1,
        train_fraction: ClosedUnitInterval = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, crop_padding=crop_padding, **kwargs)
        self.root, self.fractions = Path(root).expanduser(), {"val": val_fraction}
        if train_fraction < 1:
            self.fractions["left out"] = (1 - val_fraction) * (1 - train_fraction)
        self.images_root = self.root / CIFAR10.base_folder

    @property
    def preprocessing(self) -> Preprocessing:
        """Images keep their size, and are normalised as the training set by default."""
        return {
            "resize": 32,
            "crop": 32,
            "mean": self.mean or [0.4914, 0.4822, 0.4465],
            "std": self.std or [0.2470, 0.2435, 0.2616],
        }

    def prepare_data(self) -> None:
        """Downloads the images if they are missing, once on each machine."""
        self.fetch_archive(CIFAR10.url, CIFAR10.tgz_md5, self.images_root)

    def load(self) -> dict[str, ArrayDataset]:
        """Reads all images, and cuts a stratified validation set from the training images."""
        training, test = self._read("train"), self._read("test")
        split = self.stratified_split(training.labels.tolist(), self.fractions)
        datasets = {
            name: ArrayDataset(
                training.images[positions], training.labels[positions], f"CIFAR-10 {name}"
            )
            for name, positions in split.items()
            if name != "left out"
        }
        return {**datasets, "test": test}

    def _read(self, name: str) -> ArrayDataset:
        data = CIFAR10(str(self.root), train=name == "train")
        images = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
        return ArrayDataset(images, torch.tensor(data.targets), f"CIFAR-10 {name}")
