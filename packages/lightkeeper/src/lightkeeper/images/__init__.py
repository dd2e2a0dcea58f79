"""Image files and tables as data modules; batches, preprocessing, predictions, checkpoints."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._batch import ArrayDataset as ArrayDataset, ImageBatch as ImageBatch
    from ._bookkeeping import (
        DescribeCheckpoint as DescribeCheckpoint,
        classifier_callbacks as classifier_callbacks,
    )
    from ._check import survey as survey
    from ._checkpoint import read_checkpoint as read_checkpoint, read_weights as read_weights
    from ._checkpoints import load_model as load_model
    from ._class_names import require_class_names as require_class_names
    from ._data_module import ImageDataModule as ImageDataModule
    from ._decode import IMAGE_SUFFIXES as IMAGE_SUFFIXES
    from ._files import FileDataset as FileDataset, prepare as prepare
    from ._image_files import ImageFilesDataModule as ImageFilesDataModule
    from ._layout import ImageFile as ImageFile
    from ._map_dataset import MapDatasetModule as MapDatasetModule
    from ._predictions import (
        CollectPredictions as CollectPredictions,
        Prediction as Prediction,
        Predictions as Predictions,
        predict_files as predict_files,
    )
    from ._preprocessing import Preprocessing as Preprocessing
    from ._resized import ResizedDataModule as ResizedDataModule
    from ._settings import allow_module as allow_module

_MODULES = {
    "ArrayDataset": "_batch",
    "ImageBatch": "_batch",
    "DescribeCheckpoint": "_bookkeeping",
    "classifier_callbacks": "_bookkeeping",
    "survey": "_check",
    "read_checkpoint": "_checkpoint",
    "read_weights": "_checkpoint",
    "load_model": "_checkpoints",
    "require_class_names": "_class_names",
    "ImageDataModule": "_data_module",
    "IMAGE_SUFFIXES": "_decode",
    "FileDataset": "_files",
    "prepare": "_files",
    "ImageFilesDataModule": "_image_files",
    "ImageFile": "_layout",
    "MapDatasetModule": "_map_dataset",
    "CollectPredictions": "_predictions",
    "Prediction": "_predictions",
    "Predictions": "_predictions",
    "predict_files": "_predictions",
    "Preprocessing": "_preprocessing",
    "ResizedDataModule": "_resized",
    "allow_module": "_settings",
}

__getattr__ = lazy_names(__name__, _MODULES)
