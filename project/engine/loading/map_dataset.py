"""The workings of a data module of any map-style dataset, such as those of torchvision."""

import traceback
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch.utils.data import IterableDataset

from ..errors import UserError
from ..run.files import one_at_a_time
from .batch import BatchDataset
from .resized import ResizedDataModule
from .splits import SPLITS, cut_classes
from .torch_dataset import MapDataset, TorchDataset, class_names_of, labels_of


class MapDatasetModule(ResizedDataModule):
    """Any map-style dataset of (PIL image, uint8 tensor or file's bytes; label).

    Args:
        train: The class of the dataset, with its own options behind it, as in
            ``--data.train.root``; or a function that returns one. From Python, a dataset, too. It
            is opened when the run starts.
        val: The same for validation; by default a part of ``train``.
        test: The same for the test; by default a part of ``train``.
        class_names: The names of the classes in the order of the labels; by default those that
            ``train`` has as ``classes``, or else numbers.
        kwargs: See ``ResizedDataModule``.
    """

    not_remembered = SPLITS

    def __init__(
        self,
        train: Callable[[], MapDataset] | MapDataset,
        val: Callable[[], MapDataset] | MapDataset | None = None,
        test: Callable[[], MapDataset] | MapDataset | None = None,
        class_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = {"train": train, "val": val, "test": test}
        self._given = {split: source for split, source in given.items() if source is not None}
        self._class_names = class_names
        self._datasets: dict[str, MapDataset] = {}
        self._positions: dict[str, list[int]] = {}

    @property
    def class_names(self) -> list[str]:
        """Those that were given, or the dataset's own."""
        names = self._class_names or class_names_of(self.datasets()["train"])
        if not names:
            raise UserError(
                "--data.train has no list of classes; give their names with --data.class_names"
            )
        if len(names) < 2 or len({*names}) < len(names):
            raise UserError(
                f"--data.class_names must be two or more, all different, got {', '.join(names)}"
            )
        return names

    def prepare_data(self) -> None:
        """Opens the datasets, which may download them, and loads one sample of each."""
        for dataset in self.load().values():
            dataset.image(0)

    def datasets(self) -> dict[str, MapDataset]:
        """The datasets that were given, opened once."""
        if not self._datasets:
            opened = {
                split: _opened(f"--data.{split}", source) for split, source in self._given.items()
            }
            expected = class_names_of(opened["train"])
            for split, dataset in opened.items():
                names = getattr(dataset, "classes", None) and class_names_of(dataset)
                if self._class_names is None and names and names != expected:
                    raise UserError(
                        f"--data.{split} and --data.train need the same classes in the same order"
                    )
            self._datasets = opened
            # for what a checkpoint says of itself; nothing is made of it
            self.hparams.update(
                {split: type(dataset).__qualname__ for split, dataset in opened.items()}
            )
        return self._datasets

    def split_sizes(self) -> dict[str, int]:
        """The number of samples in each split."""
        return {split: len(positions) for split, positions in self.positions().items()}

    def positions(self) -> dict[str, list[int]]:
        """Returns the samples of each split, as positions in their dataset.

        They are cut by the hashes of the samples' names, class by class where labels can be had
        without loading images.
        """
        if not self._positions:
            sizes = {split: len(dataset) for split, dataset in self.datasets().items()}
            positions = {split: [*range(size)] for split, size in sizes.items()}
            fractions = {
                split: share for split, share in self.fractions.items() if split not in sizes
            }
            members = self._members() if fractions else {}
            names = {name: [*map(self.sample_name, places)] for name, places in members.items()}
            for split, parts in (
                cut_classes(names, fractions, self.split_seed).items() if fractions else ()
            ):
                positions[split] = sorted(
                    members[name][place] for name, places in parts.items() for place in places
                )
            self._positions = {split: positions[split] for split in SPLITS}
        return self._positions

    def sample_name(self, position: int) -> str:
        """Returns the name whose hash decides a training sample's split: its position."""
        return str(position)

    def _members(self) -> dict[str, list[int]]:
        """Returns the positions of each class's training samples, of all if labels are unknown."""
        dataset = self.datasets()["train"]
        if (labels := labels_of(dataset)) is None:
            return {type(dataset).__name__: [*range(len(dataset))]}
        names, members = self.class_names, defaultdict[str, list[int]](list)
        for position, label in enumerate(labels.tolist()):
            if not 0 <= label < len(names):
                last = len(names) - 1
                raise UserError(
                    f"--data.train has the label {label}, not one from 0 to {last}; see"
                    " --data.class_names"
                )
            members[names[label]].append(position)
        return members

    def load(self) -> dict[str, BatchDataset]:
        """Makes the three splits."""
        splits: dict[str, BatchDataset] = {}
        for split, positions in self.positions().items():
            dataset = self.datasets().get(split, self.datasets()["train"])
            labels = labels_of(dataset)
            labels = labels[torch.tensor(positions)] if labels is not None else None
            # what is measured does not depend on the seed of the run
            scale, seed = (
                (self.crop_scale, self.seed) if split == "train" else (None, self.split_seed)
            )
            count = len(self.class_names)
            splits[split] = TorchDataset(
                dataset, positions, labels, count, self.preprocessing, scale, seed
            )
        return splits


def _opened(option: str, source: Any) -> MapDataset:
    if callable(source) and not hasattr(source, "__getitem__"):
        source = _called(option, source)
    name = type(source).__name__
    if isinstance(source, IterableDataset) or not hasattr(source, "__getitem__"):
        raise UserError(
            f"{option}: {name} is not map-style: without an index, the samples of a step cannot be"
            " the same on any number of"
            " devices and after a restart; give a dataset with __getitem__ and __len__"
        )
    if len(source) == 0:
        raise UserError(f"{option}: {name} has no samples")
    return source  # type: ignore[no-any-return]


def _called(option: str, factory: Callable[[], Any]) -> Any:
    """Opens a dataset; one process at a time where it says that it downloads, and where to."""
    options = getattr(factory, "keywords", {})  # of a partial, which the command line makes
    downloads = options.get("download") and options.get("root")
    try:
        with (
            one_at_a_time(Path(options["root"]).expanduser().absolute())
            if downloads
            else nullcontext()
        ):
            return factory()
    except URLError as error:
        advice = "connect to the network, or put them where the dataset looks for them"
        raise UserError(f"{option} cannot download its files ({error.reason}); {advice}") from error
    except (OSError, RuntimeError) as error:
        last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        by_torchvision = str(last.f_globals.get("__name__")).startswith("torchvision.")
        if not (
            by_torchvision or isinstance(error, OSError)
        ):  # of others' code the traceback says more
            raise
        raise UserError(f"{option}: {' '.join(str(error).split())}") from error
