"""Hugging Face datasets, from the Hub or a folder."""

from functools import partial
from pathlib import Path
from typing import Any

from project.data.torch_dataset import TorchDatasetModule


class HuggingFaceDataModule(TorchDatasetModule):
    """A Hugging Face dataset with its classes and splits; missing splits are cut from ``train``.

    Args:
        root: The dataset's name on the Hub, or a folder: of ``save_to_disk``, of Parquet files, or
            of images with ``metadata.jsonl``.
        subset: Its configuration, if it has several.
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
