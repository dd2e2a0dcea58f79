"""CIFAR-10: 60,000 images of 32 pixels in ten classes (Krizhevsky, 2009)."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torchvision.datasets import CIFAR10

from project.data.module import ImageDataModule
from project.data.splits import stratified_split
from project.engine.errors import UserError
from project.engine.loading.batch import ArrayDataset
from project.engine.preprocessing import Preprocessing
from project.engine.run.download import one_at_a_time

_CLASS_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


class CIFAR10DataModule(ImageDataModule):
    """CIFAR-10 in memory: 45,000 images to train on, 5,000 to validate on by default, the original 10,000 to test on.

    Args:
        root: Where the folder ``cifar-10-batches-py`` is, or shall be downloaded to.
        batch_size: Images in a batch of all devices together; ``--trainer.accumulate_grad_batches`` makes a step of several.
        crop_padding: How far a training image is moved at most, in pixels; its mirrored edge fills the gap.
        val_fraction: The share of each class of the 50,000 that is validated on.
        kwargs: See :class:`project.data.module.ImageDataModule`.

    Raises:
        UserError: Nothing would be left to train or to validate on.
    """

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        crop_padding: int = 4,
        val_fraction: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, crop_padding=crop_padding, **kwargs)
        if not 0 < val_fraction < 1:
            raise UserError(f"--data.val_fraction must be above 0 and below 1, got {val_fraction}")
        self.root, self.val_fraction = Path(root).expanduser(), val_fraction

    @property
    def class_names(self) -> list[str]:
        """CIFAR-10's own names."""
        return _CLASS_NAMES

    @property
    def preprocessing(self) -> Preprocessing:
        """The images as they are; mean and standard deviation of the training images, unless others are given."""
        mean, std = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
        return {"resize": 32, "crop": 32, "mean": self.mean or mean, "std": self.std or std}

    @property
    def images_root(self) -> Path:
        """The folder that the archive holds."""
        return self.root / CIFAR10.base_folder

    def prepare_data(self) -> None:
        """Downloads what is not there, once a machine.

        Raises:
            UserError: The archive cannot be fetched or is not the expected one.
        """
        folder = self.images_root
        try:
            with nullcontext() if folder.is_dir() else one_at_a_time(folder):
                CIFAR10(str(self.root), download=True)
        except (URLError, RuntimeError, OSError) as error:
            raise UserError(
                f"CIFAR-10 cannot be downloaded to '{self.root}' ({error}); connect to the network, or put the folder"
                " cifar-10-batches-py there"
            ) from error

    def load(self) -> dict[str, ArrayDataset]:
        """Reads all images and sets a stratified part of the training images aside for validation."""
        training, test = (self._read(train) for train in (True, False))
        names = [str(position) for position in range(len(training))]
        split = stratified_split(
            names, training.labels.tolist(), {"val": self.val_fraction}, seed=self.split_seed, class_names=_CLASS_NAMES
        )
        cut: dict[str, ArrayDataset] = {
            name: ArrayDataset(training.images[positions], training.labels[positions], f"CIFAR-10 {name}")
            for name, positions in split.items()
        }
        return {**cut, "test": test}

    def _read(self, train: bool) -> ArrayDataset:
        data = CIFAR10(str(self.root), train=train)
        images = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
        return ArrayDataset(images, torch.tensor(data.targets), f"CIFAR-10 {'train' if train else 'test'}")
