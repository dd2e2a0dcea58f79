"""Hugging Face datasets, from the Hub or a folder."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightkeeper.exact import UserError

from project.data.torch_dataset import TorchDatasetModule

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_LABELS = ("label", "class", "target", "category")


class HuggingFaceDataModule(TorchDatasetModule):
    """A Hugging Face dataset with its classes and splits; missing splits are cut from ``train``.

    Args:
        root: The dataset's name on the Hub, or a folder: of ``save_to_disk``, of Parquet files, or
            of images with ``metadata.jsonl``.
        subset: Its configuration, if it has several.
        image_column: The column of images; by default the only one.
        label_column: The column of classes; by default the only ``ClassLabel``, else the one that is
            called ``label``, ``class``, ``target`` or ``category``, else the only other column.
        train: Advanced: A function that opens the dataset in place of ``root``, with its own options
            behind it, such as ``datasets.load_dataset``.
        kwargs: See ``TorchDatasetModule``.
    """

    def __init__(
        self,
        root: str = "",
        subset: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        train: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not root and train is None:
            raise UserError("must name a dataset on the Hub, or a folder", "root")
        super().__init__(train=train or partial(_open_dataset, root, subset), **kwargs)
        self.image_column, self.label_column = image_column, label_column
        self.images_root = Path(root).expanduser()
        self.not_remembered = ("val", "test") if train is None else ("train", "val", "test")
        if not self.images_root.is_dir():  # a checkpoint does not choose what is downloaded
            self.not_remembered = (*self.not_remembered, "root")

    def parts_of(self, dataset: "Dataset | DatasetDict") -> dict[str, "LabelledRows"]:
        """Returns the splits; ``layout`` says how the dataset was understood.

        Classes are those of a ``ClassLabel``, or else the values of the column.
        """
        from datasets import ClassLabel, Image, Value

        parts: Mapping[str, Dataset] = dataset if isinstance(dataset, dict) else {"train": dataset}
        names = self.split_names(parts) if len(parts) > 1 else {"train": next(iter(parts))}
        if "train" not in names:
            raise UserError(f"none of the splits {', '.join(parts)} is for training", "root")
        train = parts[names["train"]]
        columns = train.features
        images = [name for name, feature in columns.items() if isinstance(feature, Image)]
        image = _chosen(columns, "image_column", self.image_column, images)
        labels = [name for name, feature in columns.items() if isinstance(feature, ClassLabel)]
        labels = labels or [name for name in columns if name.lower() in _LABELS]
        labels = labels or [name for name in columns if name != image]
        label = _chosen(columns, "label_column", self.label_column, labels)
        if not isinstance(columns[label], ClassLabel | Value):
            raise UserError(f"{label} has no single text or number of each image", "label_column")
        values = sorted(value for value in train.unique(label) if value is not None)
        if all(str(value).isdecimal() for value in values):  # numbers as text, by their value
            values.sort(key=int)
        classes = {value: str(value) for value in values}
        if isinstance(columns[label], ClassLabel):
            classes = dict(enumerate(columns[label].names))
        splits = {
            split: LabelledRows(parts[name], image, label, classes) for split, name in names.items()
        }
        notes = [f"{len(classes)} classes from the column {label}"]
        notes += [f"{split} from {name}" for split, name in names.items() if split != name]
        if "test" in splits and (splits["test"].targets < 0).all():
            count = len(splits.pop("test"))
            notes.append(
                f"{count:,} images of {names['test']} have no classes: they are for the command"
                " predict"
            )
        if others := parts.keys() - {*names.values()}:
            notes.append(f"splits left out: {', '.join(sorted(others))}")
        self.layout = "; ".join(notes)
        return splits


class LabelledRows:
    """The rows of one split: pairs of a file's bytes and a label, -1 where it is unknown.

    Args:
        rows: The split.
        image: The column of images.
        label: The column of classes.
        classes: The name of each class by its value in that column, in the order of labels.

    Attributes:
        classes: The names of the classes.
        targets: The labels, int64 (N,), where ``labels_of`` of the library looks for them.
    """

    def __init__(
        self, rows: "Dataset", image: str, label: str, classes: Mapping[object, str]
    ) -> None:
        from datasets import Image

        plain = rows.with_format(None)
        self.rows = plain.cast_column(image, Image(decode=False))
        self.image = image
        self.classes = [*classes.values()]
        label_of = {value: position for position, value in enumerate(classes)}
        self.targets = torch.tensor([label_of.get(value, -1) for value in plain[label][:]])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        file = self.rows[index][self.image]
        return file["bytes"] or Path(file["path"]).read_bytes(), int(self.targets[index])


def _open_dataset(name: str, subset: str | None) -> "Dataset | DatasetDict":
    """Opens a folder of ``save_to_disk`` or ``load_dataset``, or a dataset of the Hub."""
    folder = Path(name).expanduser()
    try:
        import datasets

        if any((folder / written).is_file() for written in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(folder)
        return datasets.load_dataset(str(folder) if folder.is_dir() else name, subset)
    except ModuleNotFoundError as error:
        raise UserError(f'{name}: {error}; pip install --editable ".[datasets]"', "root") from error
    except (OSError, RuntimeError, ValueError) as error:  # gone, of a script, or damaged
        raise UserError(f"{name}: {' '.join(str(error).split())}", "root") from error


def _chosen(columns: Collection[str], option: str, name: str | None, usual: Collection[str]) -> str:
    """Returns the column of an option, or else the only usual one."""
    candidates = [*usual] if name is None else [name]
    if len(candidates) == 1 and candidates[0] in columns:
        return candidates[0]
    raise UserError(
        f"must name one of the columns {', '.join(columns)}, got {', '.join(candidates) or 'none'}",
        option,
    )
