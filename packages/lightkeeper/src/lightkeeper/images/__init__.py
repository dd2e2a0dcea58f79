"""Image files and tables as data modules; batches, preprocessing, predictions, checkpoints."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._batch import ArrayDataset as ArrayDataset, ImageBatch as ImageBatch
    from ._check import survey as survey
    from ._checkpoint import read_checkpoint as read_checkpoint
    from ._data_module import ImageDataModule as ImageDataModule
    from ._decode import IMAGE_SUFFIXES as IMAGE_SUFFIXES
    from ._files import FileDataset as FileDataset, prepare as prepare
    from ._image_files import ImageFilesDataModule as ImageFilesDataModule
    from ._layout import ImageFile as ImageFile
    from ._map_dataset import MapDatasetModule as MapDatasetModule
    from ._module import ClassifierModule as ClassifierModule
    from ._predictions import Predictions as Predictions
    from ._preprocessing import Preprocessing as Preprocessing
    from ._resized import ResizedDataModule as ResizedDataModule

_MODULES = {
    "ArrayDataset": "_batch",
    "ImageBatch": "_batch",
    "survey": "_check",
    "read_checkpoint": "_checkpoint",
    "ImageDataModule": "_data_module",
    "IMAGE_SUFFIXES": "_decode",
    "FileDataset": "_files",
    "prepare": "_files",
    "ImageFilesDataModule": "_image_files",
    "ImageFile": "_layout",
    "MapDatasetModule": "_map_dataset",
    "ClassifierModule": "_module",
    "Predictions": "_predictions",
    "Preprocessing": "_preprocessing",
    "ResizedDataModule": "_resized",
}

__getattr__ = lazy_names(__name__, _MODULES)
