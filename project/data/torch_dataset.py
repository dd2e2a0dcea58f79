"""Any map-style dataset, such as those of torchvision."""

from project.data.augmentation import AugmentedDataModule
from project.engine import MapDatasetModule


class TorchDatasetModule(MapDatasetModule, AugmentedDataModule):
    """Any map-style dataset of (image, label), in splits as it has them or cut by us.

    An image is one of PIL, a uint8 tensor or the bytes of a file, and a label an integer.
    """
