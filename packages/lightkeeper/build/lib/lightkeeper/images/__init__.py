"""Image files and tables as data modules; batches, preprocessing, predictions, checkpoints."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._batch import ArrayDataset as ArrayDataset, ImageBatch as ImageBatch
    from ._check import survey as survey
    from ._data_module import ImageDataModule as ImageDataModule
    from ._files import FileDataset as FileDataset
    from ._image_files import ImageFilesDataModule as ImageFilesDataModule
    from ._map_dataset import MapDatasetModule as MapDatasetModule
    from ._module import ClassifierModule as ClassifierModule
    from ._predictions import Predictions as Predictions
    from ._preprocessing import Preprocessing as Preprocessing
    from ._resized import ResizedDataModule as ResizedDataModule

_MODULES = {
    "ArrayDataset": "_batch",
    "ImageBatch": "_batch",
    "survey": "_check",
    "ImageDataModule": "_data_module",
    "FileDataset": "_files",
    "ImageFilesDataModule": "_image_files",
    "MapDatasetModule": "_map_dataset",
    "ClassifierModule": "_module",
    "Predictions": "_predictions",
    "Preprocessing": "_preprocessing",
    "ResizedDataModule": "_resized",
}

__getattr__ = lazy_names(__name__, _MODULES)
