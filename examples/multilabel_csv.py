"""Several labels for each of your own images: a CSV with the columns path and labels, as in ``photos/1.jpg,sea boat``.

python -m project.fit --data examples.multilabel_csv.LabelsCSV --model examples.multilabel.MultilabelClassifier --monitor val/mAP
"""

from pathlib import Path
from typing import Any

import torch
from lightkeeper.exact import UserError
from lightkeeper.images import FileDataset, ResizedDataModule

from examples.recipes.columns import read_columns
from project.data import AugmentedDataModule

SPLITS = ("train", "val", "test")


class LabelsCSV(AugmentedDataModule, ResizedDataModule):
    """Image files whose paths are relative to the CSV.

    A column ``split`` says train, val or test; without it, a tenth each is validation's and test's.
    """

    def __init__(self, file: str = "labels.csv", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = Path(file).parent
        self.labels: dict[str, list[str]] = {}
        self.split_of: dict[str, str | None] = {}
        for row in read_columns(file, "file", "path", "labels"):
            path, split = row["path"], row.get("split")
            if path in self.labels:
                raise UserError(f"'{file}' has two lines of '{path}': write one with all labels")
            if split not in (None, *SPLITS):
                raise UserError(f"'{file}': the split must be train, val or test, got '{split}'")
            self.labels[path], self.split_of[path] = row["labels"].split(), split

    @property
    def class_names(self) -> list[str]:
        """Every label that an image has."""
        return sorted({name for names in self.labels.values() for name in names})

    def load(self) -> dict[str, FileDataset]:
        """Cuts the splits, by the names of the files if need be; a label is 1, 0, or -1 if unknown."""
        paths, classes = list(self.labels), self.class_names
        marks = torch.tensor(
            [[int(name in self.labels[path]) for name in classes] for path in paths]
        )
        if any(self.split_of.values()):
            parts = {
                split: [at for at, path in enumerate(paths) if self.split_of[path] == split]
                for split in SPLITS
            }
        else:
            parts = self.hashed_split(paths)
        return {
            split: self._dataset(split, [paths[i] for i in at], marks[at])
            for split, at in parts.items()
        }

    def _dataset(self, split: str, paths: list[str], marks: torch.Tensor) -> FileDataset:
        is_training = split == "train"
        return FileDataset(
            [self.folder / path for path in paths],
            marks,
            self.preprocessing,
            self.crop_scale if is_training else None,
            self.seed,
            train_preprocessing=self.train_preprocessing if is_training else (),
        )
