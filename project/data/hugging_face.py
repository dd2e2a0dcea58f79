"""Data sets of Hugging Face: of the Hub, or in a folder."""

from functools import partial
from pathlib import Path
from typing import Any

from project.data.torch_dataset import TorchDatasetModule


class HuggingFaceDataModule(TorchDatasetModule):
    """A data set of Hugging Face, with its own classes and splits; others are cut by us.

    Args:
        root: Its name on the Hub, or a folder: one that ``save_to_disk`` wrote, of Parquet files,
            or of images with ``metadata.jsonl``.
        subset: Which of several data sets of that name.
        image_column: The column of images; by default the only one.
        label_column: The column of classes; by default the only ``ClassLabel``.
        kwargs: See ``TorchDatasetModule``.
    """

    def __init__(
        self,
        root: str,
        subset: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(train=partial(self.open_hugging_face, root, subset), **kwargs)
        self.image_column, self.label_column = image_column, label_column
        self.images_root = Path(root).expanduser()
        self.not_remembered = ("val", "test")
        if not self.images_root.is_dir():  # a checkpoint does not choose what is downloaded
            self.not_remembered = ("val", "test", "root")
