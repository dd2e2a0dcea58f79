"""The engine's one door: all that the rest of the package uses of it, and nothing deeper.

The engine keeps the promises that docs/promises.md names. Copy a newer one over it to upgrade.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import UserError as UserError
    from .errors import require as require
    from .loading.batch import ArrayDataset as ArrayDataset
    from .loading.batch import ImageBatch as ImageBatch
    from .loading.data_module import ImageDataModule as ImageDataModule
    from .loading.files import FileDataset as FileDataset
    from .loading.image_files import ImageFilesDataModule as ImageFilesDataModule
    from .loading.image_files import ResizedDataModule as ResizedDataModule
    from .preprocessing import Preprocessing as Preprocessing
    from .randomness import uniform as uniform
    from .run.checkpoint import read_checkpoint as read_checkpoint
    from .run.checkpoint import read_weights as read_weights
    from .run.files import fetch_file as fetch_file
    from .run.folder import read_metrics as read_metrics
    from .run.progress import note as note

__version__ = "0.2.0"

_MODULES = {
    "UserError": "errors",
    "require": "errors",
    "ArrayDataset": "loading.batch",
    "ImageBatch": "loading.batch",
    "ImageDataModule": "loading.data_module",
    "FileDataset": "loading.files",
    "ImageFilesDataModule": "loading.image_files",
    "ResizedDataModule": "loading.image_files",
    "Preprocessing": "preprocessing",
    "uniform": "randomness",
    "read_checkpoint": "run.checkpoint",
    "read_weights": "run.checkpoint",
    "fetch_file": "run.files",
    "note": "run.progress",
    "read_metrics": "run.folder",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that ``--help`` need not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
