"""A loader whose order, random numbers and evaluation are exact."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.utils.data import Dataset, IterableDataset

from ._errors import UserError, listed, note, require
from ._randomness import Purpose, derived_seed, held_generators, seed_generators
from ._sampler import EvaluationSampler, TrainingSampler
from ._upstream import position_of
from ._workers import LazyDataLoader, worker_options


class ExactDataLoader(LazyDataLoader):
    """Loads any map-style dataset in an order that depends on the seed and the epoch alone.

    torch's ``DataLoader`` draws its order from a generator, whose state a killed run loses, and
    shuffles each epoch as the ones before it have left the generator. With ``DistributedSampler``
    it begins a resumed epoch anew, and evaluates some samples twice. Here

    * the k-th batch of an epoch has the same samples on any number of devices and workers, and a
      resumed run goes on with the next batch;
    * a dataset that draws random numbers, from Python, NumPy, torch or a generator that it holds,
      draws them by (seed, epoch, index), and a training step by (seed, epoch, batch, rank);
    * an evaluation serves each sample once; its last batches may be smaller on some processes.

    Args:
        dataset: A dataset with a length, whose items are found by their index.
        trainer: The trainer that the loader is for.
        batch_size: Samples in a batch of all devices together, a multiple of their number.
        shuffle: If true, this is a training set: in another order in each epoch, of which the rest
            after the last whole batch is left out. Otherwise each sample comes once, in order.
        seed: Decides order and random numbers; by default that of ``seed_everything``, or 0.
        num_workers: Processes that load; they persist between epochs.
        options: Other arguments of torch's ``DataLoader``, such as ``collate_fn``.

    Raises:
        UserError: The dataset has no length, or the batch size does not fit it or the devices.
    """

    def __init__(
        self,
        dataset: Dataset[object],
        trainer: Trainer,
        batch_size: int,
        shuffle: bool = False,
        seed: int | None = None,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise UserError(
                f"dataset must be map-style with a length, got {type(dataset).__name__}"
            )
        size = len(dataset)
        devices = trainer.world_size
        wanted = f"a multiple of {devices}, the number of devices"
        require(batch_size % devices == 0, "batch_size", batch_size, wanted)
        if shuffle:
            wanted = f"at most {size:,}, the number of samples"
            require(batch_size <= size, "batch_size", batch_size, wanted)
        require(
            size >= devices, "dataset", f"{size:,}", f"at least {devices} samples, one a device"
        )
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.trainer = trainer
        self._order = {"seed": self.seed, "batch_size": batch_size, "samples": size}
        self.shuffle = shuffle
        sampler: TrainingSampler | EvaluationSampler
        if shuffle:
            sampler = TrainingSampler(
                size, batch_size, self.seed, lambda: position_of(trainer), devices, 0
            )
        else:
            sampler = EvaluationSampler(torch.arange(size), devices, 0)
        super().__init__(
            _SeededDataset(dataset, self.seed),
            batch_size=batch_size // devices,
            sampler=sampler,
            num_workers=num_workers,
            **worker_options(num_workers, options.pop("worker_init_fn", None)) | options,
        )
        self.before_batch = partial(seed_batch, trainer, self.seed)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # as LazyDataLoader's
        # which a trainer knows when it has started its processes
        self.sampler.rank = self.trainer.global_rank  # type: ignore[attr-defined]
        return super().__iter__()

    def state_dict(self) -> dict[str, int]:
        """Returns what the order of samples follows from, beside the trainer's epoch and batch."""
        return self._order

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Says so where a run goes on in another order than it began in."""
        changes = [
            f"{name} is {value:,}, not {state_dict[name]:,}"
            for name, value in self._order.items()
            if value != state_dict.get(name, value)
        ]
        if changes and self.trainer.is_global_zero:
            note(f"{listed(changes)}: the rest of this epoch may repeat or leave out samples")


def seed_batch(trainer: Trainer, seed: int, number: int) -> None:
    """Seeds what a model and its hooks draw in a batch, such as dropout.

    In training by (seed, epoch, batch, rank), and in evaluation by (seed, batch, rank), which draws
    the same each time.
    """
    place: tuple[int, ...] = (Purpose.EVALUATION, seed, number)
    if trainer.training:
        place = (Purpose.STEP, seed, *position_of(trainer))
    seed_generators(derived_seed(*place, trainer.global_rank), trainer.strategy.root_device)


class _SeededDataset(Dataset[object]):
    """Seeds all generators by (seed, epoch, index) before each sample of a dataset."""

    def __init__(self, dataset: Dataset[object], seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self._held = held_generators(dataset)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: tuple[int, int] | int) -> object:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        seed = derived_seed(Purpose.DATASET, self.seed, epoch, index)
        seed_generators(seed, held=self._held)
        return self.dataset[index]
