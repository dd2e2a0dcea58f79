"""The engine's one door: all that the rest of the package uses of it, and nothing deeper.

It keeps the five promises. Copy a newer one over it to upgrade.

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

    Random numbers are functions of (seed, epoch, index, purpose), the same on any devices:

    >>> [round(number, 4) for number in uniform(0, 1, torch.tensor([5, 9]), 1000)[:, 0].tolist()]
    [0.2593, 0.126]

    A classifier is a LightningModule, and tells callbacks when to log:

    >>> from lightning.pytorch import Callback, LightningModule
    >>> issubclass(ClassifierModule, LightningModule)
    True
    >>> class WeightNorm(Callback):
    ...     def on_train_batch_end(self, trainer, pl_module, *args):
    ...         if pl_module.is_logging:
    ...             pl_module.log("weight_norm", pl_module.network_head.weight.norm())

    A command is a subclass that says what people change:

    >>> class Fit(FitCommand):
    ...     defaults = {"trainer.max_epochs": 4}
    ...     default_callbacks = {"weight_norm": WeightNorm}
    >>> class Evaluate(EvaluateCommand):
    ...     description = "Measures a checkpoint."

    Commands on files have a parser and call the engine; ``CommandParser.run`` runs them:

    >>> parser = CommandParser(prog="label")
    >>> _ = parser.add_argument("--output", type=str)
    >>> def label(options):
    ...     model = ClassifierModule.load_from_checkpoint("best.ckpt")
    ...     return label_files(model, lambda row: {"confidence": row.max().numpy()}, options)
    >>> def main():
    ...     CommandParser.run(lambda: label(parser.parse_args()))
    >>> [function.__name__ for function in (export_model, read_metrics, survey)]
    ['export_model', 'read_metrics', 'survey']

    A checkpoint opens its model and its data, for predictions in Python:

    >>> model = ClassifierModule.load_from_checkpoint("best.ckpt")  # doctest: +SKIP
    >>> model.predict_files(["photo.jpg"])[0].label  # doctest: +SKIP
    'daisy'
    >>> data = ImageDataModule.load_from_checkpoint("best.ckpt")  # doctest: +SKIP
    >>> Predictions.of_split(model, data, "val").correct.double().mean()  # doctest: +SKIP
    tensor(0.9213, dtype=torch.float64)

    A mistake that a person makes is one line:

    >>> try:
    ...     ClassifierModule.read_weights("absent.pth")  # a file or an address
    ... except UserError as error:
    ...     note(f"error: {error}")
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cli.parser import CommandParser as CommandParser
    from .commands.evaluate import EvaluateCommand as EvaluateCommand
    from .commands.export import export_model as export_model
    from .commands.fit import FitCommand as FitCommand
    from .commands.predict import label_files as label_files
    from .errors import UserError as UserError, note as note
    from .loading.batch import ArrayDataset as ArrayDataset, ImageBatch as ImageBatch
    from .loading.check import survey as survey
    from .loading.data_module import ImageDataModule as ImageDataModule
    from .loading.files import FileDataset as FileDataset
    from .loading.image_files import ImageFilesDataModule as ImageFilesDataModule
    from .loading.map_dataset import MapDatasetModule as MapDatasetModule
    from .loading.resized import ResizedDataModule as ResizedDataModule
    from .preprocessing import Preprocessing as Preprocessing
    from .randomness import uniform as uniform
    from .run.folder import read_metrics as read_metrics
    from .training.module import ClassifierModule as ClassifierModule
    from .training.predictions import Predictions as Predictions

__version__ = "0.2.0"

_MODULES = {
    "CommandParser": "cli.parser",
    "export_model": "commands.export",
    "label_files": "commands.predict",
    "EvaluateCommand": "commands.evaluate",
    "FitCommand": "commands.fit",
    "UserError": "errors",
    "note": "errors",
    "ArrayDataset": "loading.batch",
    "ImageBatch": "loading.batch",
    "survey": "loading.check",
    "ImageDataModule": "loading.data_module",
    "FileDataset": "loading.files",
    "ImageFilesDataModule": "loading.image_files",
    "MapDatasetModule": "loading.map_dataset",
    "ResizedDataModule": "loading.resized",
    "Preprocessing": "preprocessing",
    "uniform": "randomness",
    "read_metrics": "run.folder",
    "ClassifierModule": "training.module",
    "Predictions": "training.predictions",
}


def __getattr__(name: str) -> object:
    """Imports a public name on first use, so that ``--help`` need not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
