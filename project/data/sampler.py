"""The order of the training samples."""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from project.data.randomness import Purpose, uniform


class TrainingSampler(DistributedSampler[int]):
    """Shuffles by (seed, epoch) and starts where training stands.

    Lightning alone cannot do this: the sampler that it injects gives each process a run of its own, so that a global
    batch depends on the number of devices, and after a restart it begins the epoch anew. Being a
    ``DistributedSampler``, this one is left alone by Lightning. It deals the shuffled samples out in turns, so the k-th
    global batch is the same on any number of devices.

    Args:
        size: How many samples the data set has.
        batch_size: The global batch size, a multiple of ``world_size`` and at most ``size``; what is left of an epoch
            after the last whole batch is not used in that epoch.
        seed: The seed of the run.
        position: Tells the epoch and the number of batches of it that are done, when iteration begins.
        world_size: The number of processes.
        rank: The number of this process.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int, position: Callable[[], tuple[int, int]], world_size: int, rank: int
    ) -> None:
        super().__init__(
            cast("Dataset[int]", range(size)), num_replicas=world_size, rank=rank, seed=seed, drop_last=True
        )
        self.size, self.batch_size, self.position = size, batch_size, position
        self.num_samples = size // batch_size * batch_size // world_size

    def __iter__(self) -> Iterator[int]:
        """Yields keys, ``epoch * size + index``, see :class:`project.data.batch.BatchDataset`."""
        epoch, batches_done = self.position()
        mine = shuffled(self.size, self.seed, epoch)[self.rank :: self.num_replicas][: self.num_samples]
        done = batches_done * self.batch_size // self.num_replicas
        return iter((mine[done:] + epoch * self.size).tolist())


def shuffled(size: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch's samples, int64 (size,): sorted by a 48-bit hash, so the same on any machine."""
    coarse, fine = uniform(seed, epoch, torch.arange(size), Purpose.ORDER, 2).double().unbind(1)
    return (coarse + fine * 2.0**-24).argsort(stable=True)
