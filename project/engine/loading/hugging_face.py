"""Data sets of Hugging Face, by their library, as map-style datasets of (file's bytes, label)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import UserError, first_sentence, listed
from .layout import sort_classes, split_names, unlabelled
from .sheet import Sheet, likely_labels

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def open_hugging_face(name: str, subset: str | None = None) -> "Dataset | DatasetDict":
    """Opens what ``save_to_disk`` wrote, a folder as ``load_dataset`` takes it, or one of the Hub.

    Raises a UserError if the library is not installed.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise UserError(
            "data sets of Hugging Face need the package datasets:"
            ' pip install --editable ".[datasets]"'
        ) from error
    folder = Path(name).expanduser()
    try:
        if any((folder / written).is_file() for written in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(folder)
        return datasets.load_dataset(str(folder) if folder.is_dir() else name, subset)
    except (OSError, RuntimeError, ValueError) as error:  # gone, of a script, or damaged
        raise UserError(f"--data hf:{name}: {first_sentence(error)}") from error


class FeatureDataset:
    """The rows of one split; ``classes`` are the names, ``targets`` the labels, int64 (N,)."""

    def __init__(
        self,
        rows: "Dataset",
        image: str,
        label: str,
        classes: Sequence[str],
        keys: Sequence[object],
    ) -> None:
        from datasets import Image

        plain = rows.with_format(None)
        self.rows = plain.cast_column(image, Image(decode=False))
        self.image = image
        self.classes = [*classes]
        places = {str(key): place for place, key in enumerate(keys)}
        self.targets = torch.tensor([places.get(str(value), -1) for value in plain[label][:]])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        file = self.rows[index][self.image]
        is_path = file["bytes"] is None
        content = Path(file["path"]).read_bytes() if is_path else file["bytes"]
        return content, int(self.targets[index])


def feature_datasets(
    opened: "Dataset | DatasetDict", image_column: str | None, label_column: str | None
) -> tuple[dict[str, FeatureDataset], str]:
    """Returns a dataset for each split, and how the data set was understood, in one line.

    Classes are those of a ``ClassLabel``, or else the values of the column.
    """
    from datasets import ClassLabel, Image

    parts: Mapping[str, Dataset] = opened if isinstance(opened, dict) else {"train": opened}
    names = split_names(parts) if len(parts) > 1 else {"train": next(iter(parts))}
    if "train" not in names:
        raise UserError(f"--data: none of the splits {listed(parts)} is for training")
    rows = parts[names["train"]]
    sheet = Sheet(Path(rows.info.dataset_name or "--data"), [*rows.features], {})
    images = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
    image = sheet.choose("image_column", image_column, images)
    labels = [name for name, feature in rows.features.items() if isinstance(feature, ClassLabel)]
    others = [name for name in rows.features if name != image]
    label = sheet.choose("label_column", label_column, labels or likely_labels(others))
    feature = rows.features[label]
    classes = (
        feature.names
        if isinstance(feature, ClassLabel)
        else sort_classes({str(value) for value in rows.unique(label) if value is not None})
    )
    keys = range(len(classes)) if isinstance(feature, ClassLabel) else classes
    splits = {
        split: FeatureDataset(parts[name], image, label, classes, keys)
        for split, name in names.items()
    }
    notes = [f"{len(classes)} classes from the column {label}"]
    notes += [f"{split} from {name}" for split, name in names.items() if split != name]
    if "test" in splits and (splits["test"].targets < 0).all():
        notes.append(unlabelled(names["test"], len(splits.pop("test"))))
    if others := sorted(parts.keys() - {*names.values()}):
        notes.append(f"splits left out: {listed(others)}")
    return splits, "; ".join(notes)
