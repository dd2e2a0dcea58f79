"""The order of samples: in training another one for each epoch, in evaluation always the same."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, SequentialSampler

from ._randomness import Purpose, uniform


class TrainingSampler(DistributedSampler[tuple[int, int]], SequentialSampler):
    """Shuffles by (seed, epoch) and starts where training stands; yields (epoch, index).

    torch's ``DistributedSampler`` deals one order out in turns, so that the k-th global batch is
    the same on any number of devices. It always begins an epoch anew, is told the epoch too late
    when a run resumes, and shuffles by a generator. What is left of an epoch after its last whole
    batch is not used in that epoch.

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
    ) -> None:
        whole_batches = range(size // batch_size * batch_size)
        dataset = cast("Dataset[tuple[int, int]]", whole_batches)
        super().__init__(dataset, world_size, rank, seed=seed, drop_last=True)
        self.batch_size = batch_size // world_size
        self.position = position
        self.same_each_epoch = same_each_epoch
        self.draw = draw or partial(shuffled, size, seed)

    def __iter__(self) -> Iterator[tuple[int, int]]:  # type: ignore[override]  # keys, no indices
        epoch, batches_done = self.position()
        order = self.draw(0 if self.same_each_epoch else epoch)[: self.total_size]
        indices = order[self.rank :: self.num_replicas][batches_done * self.batch_size :]
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


def shuffled(size: int, seed: int, epoch: int) -> Tensor:
    """Returns the order of an epoch's samples, int64 (size,), by a 48-bit hash, on any machine."""
    return fine_uniform(seed, epoch, torch.arange(size), Purpose.ORDER).argsort(stable=True)


def fine_uniform(seed: int, epoch: int, indices: Tensor, purpose: Purpose) -> Tensor:
    """Returns numbers in [0, 1) in steps of 2^-48, float64 (N,)."""
    coarse, fine = uniform(seed, epoch, indices, purpose, 2).double().unbind(1)
    return coarse + fine * 2.0**-24
