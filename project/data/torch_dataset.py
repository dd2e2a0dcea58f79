"""Any map-style dataset, such as those of torchvision."""

from lightkeeper.images import MapDatasetModule

from project.data.augmentation import AugmentedDataModule


class TorchDatasetModule(MapDatasetModule, AugmentedDataModule):
    """Any map-style dataset of (image, label), one for each split, or one to be split.

    An image is a PIL image, a uint8 tensor or the bytes of a file; a label is an integer.
    """
