"""A dataset of torch: a split of a data set of Hugging Face, from the Hub or a folder. It needs `pip install datasets`.

python -m project.fit --data TorchDatasetModule --data.train examples.hugging_face.HuggingFaceDataset --data.train.root FOLDER
"""

from pathlib import Path
from typing import Any

import datasets
from lightkeeper.exact import UserError
from torch.utils.data import Dataset


class HuggingFaceDataset(Dataset[Any]):
    """The files of a column of images, and their classes: those of a ``ClassLabel``, or its values.

    ``root`` is a name on the Hub, which may have subsets, or a folder: of ``save_to_disk``, of
    Parquet files, or of images with ``metadata.jsonl``.
    """

    def __init__(
        self,
        root: str,
        split: str = "train",
        subset: str | None = None,
        image_column: str = "image",
        label_column: str = "label",
    ) -> None:
        rows = opened(root, subset, split).with_format(None)
        if missing := {image_column, label_column} - {*rows.features}:
            columns = ", ".join(rows.features)
            raise UserError(f"{root} has no column {missing.pop()}, but {columns}")
        labels, feature = rows[label_column][:], rows.features[label_column]
        is_number = isinstance(feature, datasets.ClassLabel)
        self.classes = feature.names if is_number else sorted(set(labels))
        places = {label: place for place, label in enumerate(self.classes)}
        self.targets = labels if is_number else [places[label] for label in labels]
        self.files = rows.cast_column(image_column, datasets.Image(decode=False))[image_column]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        file = self.files[index]
        return file["bytes"] or Path(file["path"]).read_bytes(), self.targets[index]


def opened(root: str, subset: str | None, split: str) -> Any:
    """Opens a split; what is not there, damaged or not to be read is one line."""
    folder = Path(root).expanduser()
    try:
        if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
            saved = datasets.load_from_disk(folder)
            return saved[split] if isinstance(saved, dict) else saved
        return datasets.load_dataset(str(folder) if folder.is_dir() else root, subset, split=split)
    except (LookupError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{root}: {' '.join(str(error).split())}") from error
