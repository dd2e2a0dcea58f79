"""Data modules: images, labels, splits and augmentation. Nothing here imports the model."""

from lightkeeper.images import ArrayDataset, ImageDataModule

from project.data.augmentation import AugmentedDataModule
from project.data.cifar10 import CIFAR10DataModule
from project.data.csv_file import CSVDataModule
from project.data.flowers import FlowersDataModule
from project.data.flowers_drawn import SyntheticFlowersDataModule
from project.data.folder import FolderDataModule
from project.data.hugging_face import HuggingFaceDataModule
from project.data.torch_dataset import TorchDatasetModule

__all__ = [
    "ArrayDataset",
    "AugmentedDataModule",
    "CIFAR10DataModule",
    "CSVDataModule",
    "FlowersDataModule",
    "FolderDataModule",
    "HuggingFaceDataModule",
    "ImageDataModule",
    "SyntheticFlowersDataModule",
    "TorchDatasetModule",
]
