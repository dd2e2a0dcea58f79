"""The workings of a data module of any map-style dataset, such as those of torchvision."""

from collections.abc import Callable, Sized
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from ..errors import UserError
from ..run.files import one_at_a_time
from .batch import BatchDataset
from .hugging_face import feature_datasets, open_hugging_face
from .resized import ResizedDataModule
from .splits import SPLITS, grouped_split
from .torch_dataset import MapDataset, TorchDataset, class_names_of, labels_of

Source = Callable[[], Sized] | Dataset[Any] | Callable[..., object]
"""A dataset, or what returns one; of Hugging Face also one for each split.

A parser takes any class with a length for the first.
"""


class MapDatasetModule(ResizedDataModule):
    """Any map-style dataset of (PIL image, uint8 tensor or file's bytes; label).

    Args:
        train: The class of the dataset, or a function that returns it, with its own options behind
            it, as in ``--data.train.root``. From Python, a dataset, too.
        val: The same for validation; by default a part of ``train``.
        test: The same for the test; by default a part of ``train``.
        class_names: The names of the classes in the order of the labels; by default those that
            ``train`` has as ``classes``, or else numbers.
        kwargs: See ``ResizedDataModule``.
    """

    not_remembered: tuple[str, ...] = SPLITS
    open_hugging_face = staticmethod(open_hugging_face)
    image_column: str | None = None
    """The column of images in a data set of Hugging Face, if it is not the only one."""
    label_column: str | None = None
    """The column of classes, likewise."""

    def __init__(
        self,
        train: Source,
        val: Source | None = None,
        test: Source | None = None,
        class_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sources = {"train": train, "val": val, "test": test}
        self._sources = {split: source for split, source in sources.items() if source is not None}
        self._class_names = class_names

    @property
    def class_names(self) -> list[str]:
        """Those that were given, or the dataset's own."""
        names = self._class_names or class_names_of(self.datasets["train"])
        if not names:
            raise UserError(
                "--data.train has no list of classes; give their names with --data.class_names"
            )
        return names

    def prepare_data(self) -> None:
        """Opens the datasets, which may download them, and loads one sample of each."""
        for dataset in self.load().values():
            dataset.image(0)

    @cached_property
    def datasets(self) -> dict[str, MapDataset]:
        """The datasets of the splits that there are."""
        datasets: dict[str, MapDataset] = {}
        for split, source in self._sources.items():
            dataset = _opened(f"--data.{split}", source)
            parts = {split: dataset}
            if hasattr(dataset, "column_names"):  # of Hugging Face
                columns = self.image_column, self.label_column
                parts, self.layout = feature_datasets(dataset, *columns)
            datasets |= parts if split == "train" else {split: next(iter(parts.values()))}
        expected = class_names_of(datasets["train"])
        for split, dataset in datasets.items():
            differs = hasattr(dataset, "classes") and class_names_of(dataset) != expected
            if differs and self._class_names is None:
                raise UserError(
                    f"--data.{split} and --data.train need the same classes in the same order"
                )
        # for what a checkpoint says of itself; nothing is made of it
        named = self._sources.keys() & {*self.not_remembered}
        self.hparams.update({split: type(datasets[split]).__qualname__ for split in named})
        return datasets

    def split_sizes(self) -> dict[str, int]:
        """The number of samples in each split."""
        return {split: len(positions) for split, positions in self.positions.items()}

    @cached_property
    def positions(self) -> dict[str, list[int]]:
        """The samples of each split, as positions in their dataset.

        They are cut by the hashes of the samples' names, class by class where labels can be had
        without loading images.
        """
        positions = {split: [*range(len(dataset))] for split, dataset in self.datasets.items()}
        fractions = {
            split: share for split, share in self.fractions.items() if split not in self.datasets
        }
        labels = self._classes_of_samples()
        names = [*map(self.sample_name, positions["train"])]
        split_of = grouped_split(labels, names, fractions, self.split_seed)
        for split in ("train", *fractions):
            positions[split] = [place for place, its in enumerate(split_of) if its == split]
        return {split: positions[split] for split in SPLITS}

    def sample_name(self, position: int) -> str:
        """Returns the name whose hash decides a training sample's split: its position."""
        return str(position)

    def _classes_of_samples(self) -> list[str]:
        """Returns the class of each training sample, one for all if labels are unknown."""
        dataset = self.datasets["train"]
        if (labels := labels_of(dataset)) is None:
            return [type(dataset).__name__] * len(dataset)
        names = self.class_names
        if not 0 <= labels.min() <= labels.max() < len(names):
            raise UserError(
                f"--data.train has labels from {labels.min()} to {labels.max()}, not from 0 to"
                f" {len(names) - 1}; see --data.class_names"
            )
        return [names[label] for label in labels.tolist()]

    def load(self) -> dict[str, BatchDataset]:
        """Makes the three splits."""
        count = len(self.class_names)
        splits: dict[str, BatchDataset] = {}
        for split, positions in self.positions.items():
            dataset = self.datasets.get(split, self.datasets["train"])
            options: dict[str, Any] = {"seed": self.split_seed}  # measured alike in any run
            if split == "train":
                options = {"seed": self.seed, "crop_scale": self.crop_scale}
            splits[split] = TorchDataset(dataset, positions, count, self.preprocessing, **options)
        return splits


def _opened(option: str, source: Any) -> Any:
    """Opens a dataset; one process at a time if it says that it downloads, and where to."""
    if callable(source) and not hasattr(source, "__getitem__"):
        options = getattr(source, "keywords", {})  # of a partial, which the command line makes
        waits: AbstractContextManager[object] = nullcontext()
        if options.get("download") and options.get("root"):
            waits = one_at_a_time(Path(options["root"]).expanduser().absolute())
        with waits:
            source = source()
    if isinstance(source, IterableDataset) or not hasattr(source, "__getitem__"):
        raise UserError(
            f"{option}: {type(source).__name__} is not map-style: without an index, the samples of"
            " a step cannot be the same on any number of devices and after a restart; give a"
            " dataset with __getitem__ and __len__"
        )
    if len(source) == 0:
        raise UserError(f"{option}: {type(source).__name__} has no samples")
    return source
