"""Any map-style dataset, such as those of torchvision."""

from project.data.augmentation import AugmentedDataModule
from project.engine import MapDatasetModule


class TorchDatasetModule(MapDatasetModule, AugmentedDataModule):
    """Any map-style dataset of (image, label), one for each split, or one to be split.

    An image is a PIL image, a uint8 tensor or the bytes of a file; a label is an integer.
    """
