"""A loader whose order, random numbers and evaluation are exact, and its samplers.

The order of samples is in training another one for each epoch, in evaluation always the same.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from inspect import ismethod
from itertools import repeat
from math import ceil
from types import NoneType
from typing import Any, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
)

from ._errors import UserError, listed, note, require
from ._randomness import Purpose, derived_seed, held_generators, seed_generators, uniform
from ._upstream import counted, cycles_loaders, position_of, training_loaders, validation_loaders
from ._workers import LazyDataLoader, worker_options


class TrainingSampler(DistributedSampler[tuple[int, int]], SequentialSampler):
    """Shuffles by (seed, epoch) and starts where training stands; yields (epoch, index).

    torch's ``DistributedSampler`` deals one order out in turns, so that the k-th global batch is
    the same on any number of devices. It always begins an epoch anew, is told the epoch too late
    when a run resumes, and shuffles by a generator. What is left of an epoch after its last whole
    batch is not used in that epoch. Where a longer loader beside it makes an epoch take the
    samples again, the size of the dataset is added to their indices in each further round.

    It is a ``SequentialSampler`` as well, because Lightning replaces any other with
    ``overfit_batches``, and would then take a dataset from its beginning, which for a folder of
    classes is its first class.

    Args:
        size: The number of samples, at least ``batch_size``.
        batch_size: Samples in a batch of all devices together, a multiple of ``world_size``.
        seed: Decides the order.
        position: Returns the epoch and the number of its batches that are done; called when
            iteration begins.
        world_size: The number of processes.
        rank: The rank of this process.
        same_each_epoch: If true, each epoch has the samples and the order of the first.
        draw: Returns the samples of an epoch by its number, int64 (N,); by default all, shuffled.
        cycles: Returns False if an epoch takes the samples once, however long it is.
        drop_last: If false, the samples after the last whole batch are used, too.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        position: Callable[[], tuple[int, int]],
        world_size: int,
        rank: int,
        same_each_epoch: bool = False,
        draw: Callable[[int], Tensor] | None = None,
        cycles: Callable[[], bool] = lambda: True,
        drop_last: bool = True,
    ) -> None:
        used = range(size // batch_size * batch_size if drop_last else size)
        dataset = cast("Dataset[tuple[int, int]]", used)
        super().__init__(dataset, world_size, rank, seed=seed, drop_last=True)
        self.size = size
        self.batch_size = batch_size // world_size
        self.position = position
        self.same_each_epoch = same_each_epoch
        self.draw = draw or partial(shuffled, size, seed)
        self.cycles = cycles

    def __iter__(self) -> Iterator[tuple[int, int]]:  # type: ignore[override]  # keys, no indices
        epoch, batches_done = self.position()
        order = self.draw(0 if self.same_each_epoch else epoch)
        is_whole = self.total_size <= len(order) <= self.size
        require(is_whole, "draw", len(order), f"{self.size} samples")
        order = order[: self.total_size]
        # Lightning begins a loader again that has fewer batches than one beside it
        rounds, done = divmod(batches_done, max(1, ceil(self.num_samples / self.batch_size)))
        if rounds and not self.cycles():
            return iter(())
        own = order[self.rank :: self.num_replicas]
        indices = own[done * self.batch_size :] + rounds * self.size
        return zip(repeat(epoch), indices.tolist())


class EvaluationSampler(DistributedSampler[int], SequentialSampler):
    """Deals a dataset out in turns, in a fixed order, each sample once.

    torch's ``DistributedSampler`` repeats samples until each process has as many. Here some
    processes have one less than ``len`` says, which is the same on all, so that they agree on
    the number of batches of a ``limit_val_batches``.
    """

    def __init__(self, order: Tensor, world_size: int, rank: int) -> None:
        super().__init__(cast("Dataset[int]", order), world_size, rank)
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order[self.rank :: self.num_replicas].tolist())


class _OrderedSampler(EvaluationSampler):
    """An evaluation sampler that resumes within an epoch if its loader is trained on."""

    def __init__(self, training: TrainingSampler, trains: Callable[[], bool]) -> None:
        super().__init__(torch.arange(training.size), training.num_replicas, 0)
        self.training = training
        self.trains = trains

    def __len__(self) -> int:
        return len(self.training) if self.trains() else super().__len__()

    def __iter__(self) -> Iterator[int]:
        if not self.trains():
            return super().__iter__()
        self.training.rank = self.rank
        return iter(self.training)  # type: ignore[arg-type]  # keys, no indices


def in_order(size: int, _epoch: int) -> Tensor:
    """Returns each epoch's samples as they come, int64 (size,)."""
    return torch.arange(size)


def shuffled(size: int, seed: int, epoch: int) -> Tensor:
    """Returns the order of an epoch's samples, int64 (size,), by a 48-bit hash, on any machine."""
    return fine_uniform(seed, epoch, torch.arange(size), Purpose.ORDER).argsort(stable=True)


def fine_uniform(seed: int, epoch: int, indices: Tensor, purpose: Purpose) -> Tensor:
    """Returns numbers in [0, 1) in steps of 2^-48, float64 (N,)."""
    coarse, fine = uniform(seed, epoch, indices, purpose, 2).double().unbind(1)
    return coarse + fine * 2.0**-24


class ExactDataLoader(LazyDataLoader):
    """Loads any map-style dataset in an order that depends on the seed and the epoch alone.

    torch's ``DataLoader`` draws its order from a generator, whose state a killed run loses, and
    shuffles each epoch as the ones before it have left the generator. With ``DistributedSampler``
    it begins a resumed epoch anew, and evaluates some samples twice. Here

    * the k-th batch of an epoch has the same samples on any number of devices and workers, and a
      resumed run continues with the next batch;
    * a dataset that draws random numbers, from Python, NumPy, torch or a generator that it holds,
      draws them by (seed, epoch, index), and a training step by (seed, epoch, batch, rank), or
      beside a training loader of one's own by (seed, epoch, batch);
    * an evaluation serves each sample once; its last batches may be smaller on some processes.

    Args:
        dataset: A dataset with a length, whose items are found by their index.
        trainer: The trainer that the loader is for.
        batch_size: Samples in a batch of all devices together, a multiple of their number.
        shuffle: If true, this is a training set: in another order in each epoch, of which the rest
            after the last whole batch is left out. Otherwise each sample comes once, in order; if
            it trains, each process has as many.
        seed: Decides order and random numbers; by default that of ``seed_everything``, or 0.
        num_workers: Processes that load; they persist between epochs.
        draw: Returns the samples of an epoch of training by its number, int64 (N,), as many as the
            dataset has, in place of a shuffle: those of rare classes more often, for example.
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
        draw: Callable[[int], Tensor] | None = None,
        **options: Any,
    ) -> None:
        is_other = isinstance(dataset, IterableDataset) or behind_batches(dataset) is not None
        if is_other or not hasattr(dataset, "__len__"):
            raise UserError(
                f"dataset must be map-style with a length, got {type(dataset).__name__}"
            )
        size = len(dataset)
        devices = trainer.world_size
        is_drawn = shuffle or draw is not None
        require((batch_size or 0) > 0, "batch_size", batch_size, "above 0")
        # to predict, Lightning makes the loader anew, with its own around the sampler
        is_predicting = isinstance(
            getattr(options.get("batch_sampler"), "sampler", None), EvaluationSampler
        )
        is_ordered = options.get("batch_sampler") is not None or options.get("sampler") is not None
        if is_ordered and not is_predicting:
            raise UserError("the order is the loader's own: it takes no sampler or batch_sampler")
        require(
            is_predicting or batch_size % devices == 0,
            "batch_size",
            batch_size,
            f"a multiple of {devices}, the number of devices",
        )
        require(
            batch_size <= size or not is_drawn,
            "batch_size",
            batch_size,
            f"at most {size:,}, the number of samples",
        )
        require(
            size >= devices, "dataset", f"{size:,}", f"at least {devices} samples, one a device"
        )
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.trainer = trainer
        self._order = {"seed": self.seed, "batch_size": batch_size, "samples": size}
        self._resumes = False
        make = partial(
            TrainingSampler,
            size,
            batch_size,
            self.seed,
            position=partial(position_of, trainer),
            world_size=devices,
            rank=0,
            same_each_epoch=trainer.overfit_batches > 0,  # type: ignore[attr-defined]
            cycles=partial(cycles_loaders, trainer),
        )
        if is_drawn:
            sampler: TrainingSampler | EvaluationSampler = make(draw=draw)
        else:
            ordered = make(
                position=self._resumed_position,
                draw=partial(in_order, size),
                drop_last=bool(options.get("drop_last")),
            )
            sampler = _OrderedSampler(ordered, self._is_trained_on)
        batches: dict[str, Any] = {"batch_size": batch_size // devices, "sampler": sampler}
        collate = options.get("collate_fn")
        super().__init__(
            # a method's object may hold the whole project
            _SeededDataset(dataset, self.seed, None if ismethod(collate) else collate),
            num_workers=num_workers,
            **({} if is_predicting else batches),
            **worker_options(num_workers, options.pop("worker_init_fn", None)) | options,
        )
        self.before_batch = partial(seed_batch, trainer, self.seed)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # as LazyDataLoader's
        # which a trainer knows when it has started its processes
        self.batch_sampler.sampler.rank = self.trainer.global_rank  # type: ignore[union-attr]
        return super().__iter__()

    def _is_trained_on(self) -> bool:
        return self.trainer.training and any(
            part is self for part in training_loaders(self.trainer)
        )

    def _resumed_position(self) -> tuple[int, int]:
        """Returns the epoch, and where a run resumes within it, how many batches are done.

        Whoever iterates a set in order otherwise, as in a hook, begins with its first sample.
        """
        epoch, done = position_of(self.trainer)
        resumes = self._resumes
        self._resumes = False
        if resumes and cycles_loaders(self.trainer):
            done %= len(self)
        return epoch, done if resumes else 0

    def state_dict(self) -> dict[str, int]:
        """Returns what decides the order of samples, beside the trainer's epoch and batch."""
        return self._order

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Notes if the rest of the epoch has another order than the checkpoint's."""
        self._resumes = True
        changes = [
            f"{name} is {value:,}, not {state_dict[name]:,}"
            for name, value in self._order.items()
            if value != state_dict.get(name, value)
        ]
        if changes and self.trainer.is_global_zero:
            note(f"{listed(changes)}: the rest of this epoch may repeat or leave out samples")


def note_inexact_loaders(trainer: Trainer) -> None:
    """Notes a training loader that does not know where a run resumes within an epoch."""
    for loader in training_loaders(trainer):
        sampler = getattr(loader, "sampler", None)
        knows_place = isinstance(sampler, TrainingSampler) or hasattr(loader, "state_dict")
        if trainer.is_global_zero and not knows_place:
            batches = getattr(loader, "batch_sampler", None)
            serves_batches = behind_batches(getattr(loader, "dataset", None)) is not None
            is_own = serves_batches or type(batches) not in (BatchSampler, NoneType)
            note(
                f"if this run resumes within an epoch, its {type(loader).__name__} begins the epoch"
                f" anew{', as it has no state_dict' if is_own else ': take ExactDataLoader'}"
            )


def behind_batches(dataset: object) -> object:
    """Returns the dataset behind a part of one, if it serves whole batches alone, else None."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    has_samples = hasattr(dataset, "__getitem__") or not hasattr(dataset, "__getitems__")
    return None if has_samples else dataset


def seed_batch(trainer: Trainer, seed: int, number: int) -> None:
    """Seeds what a model and its hooks draw in a batch, such as dropout.

    In training by (seed, epoch, batch, rank), and in evaluation by (seed, batch, rank), which draws
    the same each time.
    """
    place: tuple[int, ...] = (Purpose.EVALUATION, seed, number)
    if trainer.training:
        place = (Purpose.STEP, seed, *position_of(trainer))
    seed_generators(derived_seed(*place, trainer.global_rank), trainer.strategy.root_device)


def seed_other_loaders(trainer: Trainer, purpose: Purpose) -> None:
    """Seeds what is drawn in a batch of loaders of one's own, if ``seed_everything`` was called.

    By (seed, epoch, batch), alike on all processes: a sampler may deal by numbers that it draws.
    """
    seed = os.environ.get("PL_GLOBAL_SEED")
    if seed and not all(isinstance(part, LazyDataLoader) for part in training_loaders(trainer)):
        _seed_alike(trainer, purpose, int(seed))


def seed_after_validation(trainer: Trainer) -> None:
    """Seeds what hooks draw between a validation and the next step, alike on all processes.

    By (seed, epoch, batch), if ``seed_everything`` was called; by (epoch, batch) if not, but one of
    our loaders has seeded a batch.
    """
    seed = os.environ.get("PL_GLOBAL_SEED")
    loaders = [*training_loaders(trainer), *validation_loaders(trainer)]
    if seed or any(isinstance(part, LazyDataLoader) for part in loaders):
        _seed_alike(trainer, Purpose.AFTER_VALIDATION, int(seed or 0))


def _seed_alike(trainer: Trainer, purpose: Purpose, seed: int) -> None:
    """Seeds by (seed, epoch, batch), alike on all processes."""
    place = (purpose, seed, *counted(trainer))
    seed_generators(derived_seed(*place), trainer.strategy.root_device)


class _SeededDataset(Dataset[object]):
    """Seeds all generators by (seed, epoch, index) before each sample of a dataset.

    Otherwise it is that dataset: ``loader.dataset.level = 3`` sets the dataset's own attribute.
    Workers that persist keep the dataset that they began with.
    """

    _seeded: Any
    _seed: int
    _held: list[object]

    def __init__(self, dataset: Dataset[object], seed: int, collate: object = None) -> None:
        # what collates draws as the last sample of its batch has it
        vars(self).update(_seeded=dataset, _seed=seed, _held=held_generators(dataset, collate))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_seeded":  # as where it is unpickled
            raise AttributeError(name)
        return getattr(self._seeded, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._seeded, name, value)

    def __len__(self) -> int:
        return len(self._seeded)

    def __getitem__(self, key: tuple[int, int] | int) -> object:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        seed = derived_seed(Purpose.DATASET, self._seed, epoch, index)
        seed_generators(seed, held=self._held)
        return self._seeded[index % len(self)]
