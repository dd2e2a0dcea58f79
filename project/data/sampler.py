"""The order of samples: in training another one for each epoch, in evaluation always the same one."""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, SequentialSampler

from project.data.randomness import Purpose, uniform


class _FixedBySeed(DistributedSampler[int], SequentialSampler):
    """A sampler that Lightning leaves alone.

    Lightning replaces a sampler on several devices unless it is a ``DistributedSampler``, and with ``overfit_batches``
    unless it is a ``SequentialSampler``: it would then take a data set from its beginning, which for a folder of classes
    is its first class.
    """


class TrainingSampler(_FixedBySeed):
    """Shuffles by (seed, epoch) and starts where training stands.

    Lightning alone cannot do this: the sampler that it injects gives each process a run of its own, so that a global
    batch depends on the number of devices, and after a restart it begins the epoch anew. This one deals the shuffled
    samples out in turns, so the k-th global batch is the same on any number of devices.

    Args:
        size: How many samples the data set has.
        batch_size: The global batch size, a multiple of ``world_size`` and at most ``size``; what is left of an epoch
            after the last whole batch is not used in that epoch.
        seed: The seed of the run.
        position: Tells the epoch and the number of batches of it that are done, when iteration begins.
        world_size: The number of processes.
        rank: The number of this process.
        same_each_epoch: Whether every epoch has the order of the first, as for ``overfit_batches``.
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
    ) -> None:
        super().__init__(
            cast("Dataset[int]", range(size)), num_replicas=world_size, rank=rank, seed=seed, drop_last=True
        )
        self.size, self.batch_size, self.position, self.same_each_epoch = size, batch_size, position, same_each_epoch
        self.num_samples = size // batch_size * batch_size // world_size

    def __iter__(self) -> Iterator[int]:
        """Yields keys, ``epoch * size + index``, see :class:`project.data.batch.BatchDataset`."""
        epoch, batches_done = self.position()
        order = shuffled(self.size, self.seed, 0 if self.same_each_epoch else epoch)
        mine = order[self.rank :: self.num_replicas][: self.num_samples]
        done = batches_done * self.batch_size // self.num_replicas
        return iter((mine[done:] + epoch * self.size).tolist())


class EvaluationSampler(_FixedBySeed):
    """Takes a whole data set in one shuffled order, so that its first batches are a fair sample of it.

    The order depends on the seed alone, and its samples are dealt out in turns: the k-th global batch is the same on any
    number of devices that divides the batch size. Every process gets as many samples; where the data set does not
    divide, the last of some processes is one that another process has as well.

    Args:
        size: How many samples the data set has.
        seed: Another seed gives another order.
        world_size: The number of processes.
        rank: The number of this process.
    """

    def __init__(self, size: int, seed: int, world_size: int, rank: int) -> None:
        super().__init__(cast("Dataset[int]", range(size)), num_replicas=world_size, rank=rank, seed=seed)
        order = shuffled(size, seed, 0)
        padding = self.total_size - size
        self._mine = torch.cat([order, order.repeat(-(-padding // size))[:padding]])[rank::world_size]
        self.repeated: int | None = int(self._mine[-1]) if rank >= world_size - padding else None
        """The index of the sample that another process has as well and counts, if there is one; it comes last."""

    def __iter__(self) -> Iterator[int]:
        """Yields indices."""
        return iter(self._mine.tolist())


def shuffled(size: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch's samples, int64 (size,): sorted by a 48-bit hash, so the same on any machine."""
    coarse, fine = uniform(seed, epoch, torch.arange(size), Purpose.ORDER, 2).double().unbind(1)
    return (coarse + fine * 2.0**-24).argsort(stable=True)
