"""Image files and tables as data modules; batches, preprocessing, predictions, checkpoints.

Examples:
    A data set is a subclass with classes, preprocessing and images:

    >>> import torch
    >>> class Noise(ImageDataModule):
    ...     class_names = ["grey", "loud"]
    ...     preprocessing = Preprocessing(resize=8, crop=8, mean=[0.5] * 3, std=[0.25] * 3)
    ...
    ...     def load(self):
    ...         images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    ...         data = ArrayDataset(images, torch.arange(6) % 2, "noise, number")
    ...         return {"train": data, "val": data, "test": data}
    >>> data = Noise(batch_size=4)
    >>> data.setup("fit")
    >>> batch = next(iter(data.val_dataloader()))
    >>> isinstance(batch, ImageBatch), batch.images.shape, data.splits["val"].name(2)
    (True, torch.Size([4, 3, 8, 8]), 'noise, number 2')

    Any class with samples and a length is a data set, cut into splits if it is one alone:

    >>> samples = [(torch.zeros(3, 9, 9, dtype=torch.uint8), 0)] * 9
    >>> pairs = MapDatasetModule(samples, class_names=["grey", "loud"])
    >>> {split: len(positions) for split, positions in pairs.positions.items()}
    {'train': 7, 'val': 1, 'test': 1}

    Images in files are decoded in loader workers; a subclass says which folder has the classes:

    >>> from pathlib import Path
    >>> class Photos(ImageFilesDataModule):
    ...     source = Path("photos")
    >>> issubclass(Photos, ResizedDataModule)
    True
    >>> FileDataset([Path("1.jpg")], torch.tensor([0]), Noise.preprocessing).name(0)
    '1.jpg'

    A classifier is a LightningModule with ``class_names`` and ``preprocessing``, as the template's
    ``ImageClassifier``, which adds the callbacks that describe its checkpoints:

    >>> from lightning.pytorch import LightningModule
    >>> class Classifier(LightningModule):
    ...     def configure_callbacks(self):
    ...         return classifier_callbacks(self.trainer)

    A checkpoint opens its model and its data, for predictions in Python:

    >>> model = load_model(Classifier, "best.ckpt")  # doctest: +SKIP
    >>> predict_files(model, ["photo.jpg"])[0].label  # doctest: +SKIP
    'daisy'
    >>> data = ImageDataModule.load_from_checkpoint("best.ckpt")  # doctest: +SKIP
    >>> Predictions.of_split(model, data, "val").correct.double().mean()  # doctest: +SKIP
    tensor(0.9213, dtype=torch.float64)
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._batch import ArrayDataset as ArrayDataset, ImageBatch as ImageBatch
    from ._bookkeeping import classifier_callbacks as classifier_callbacks
    from ._checkpoint import read_checkpoint as read_checkpoint, read_weights as read_weights
    from ._checkpoints import load_model as load_model
    from ._data_module import ImageDataModule as ImageDataModule
    from ._files import FileDataset as FileDataset, prepare as prepare
    from ._image_files import ImageFilesDataModule as ImageFilesDataModule
    from ._layout import ImageFile as ImageFile
    from ._map_dataset import MapDatasetModule as MapDatasetModule
    from ._predictions import (
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
    "classifier_callbacks": "_bookkeeping",
    "read_checkpoint": "_checkpoint",
    "read_weights": "_checkpoint",
    "load_model": "_checkpoints",
    "ImageDataModule": "_data_module",
    "FileDataset": "_files",
    "prepare": "_files",
    "ImageFilesDataModule": "_image_files",
    "ImageFile": "_layout",
    "MapDatasetModule": "_map_dataset",
    "Prediction": "_predictions",
    "Predictions": "_predictions",
    "predict_files": "_predictions",
    "Preprocessing": "_preprocessing",
    "ResizedDataModule": "_resized",
    "allow_module": "_settings",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
