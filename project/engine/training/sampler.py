"""The order of samples: in training another one for each epoch, in evaluation always the same one."""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, SequentialSampler

from ..errors import UserError
from ..loading.batch import make_keys
from ..randomness import Purpose, uniform


class _FixedBySeed(DistributedSampler[int], SequentialSampler):
    """A sampler that Lightning leaves alone.

    Lightning replaces a sampler on several devices unless it is a ``DistributedSampler``, and with ``overfit_batches``
    unless it is a ``SequentialSampler``: it would then take a dataset from its beginning, which for a folder of classes
    is its first class.
    """


class TrainingSampler(_FixedBySeed):
    """Shuffles by (seed, epoch) and starts where training stands.

    Lightning alone cannot do this: the sampler that it injects gives each process a run of its own, so that a global
    batch depends on the number of devices, and after a restart it begins the epoch anew. This one deals the shuffled
    samples out in turns, so the k-th global batch is the same on any number of devices.

    Args:
        size: How many samples the dataset has.
        batch_size: The global batch size, a multiple of ``world_size`` and at most ``size``; what is left of an epoch
            after the last whole batch is not used in that epoch.
        seed: The seed of the run.
        position: Tells the epoch and the number of batches of it that are done, when iteration begins.
        world_size: The number of processes.
        rank: The number of this process.
        same_each_epoch: Whether every epoch has the order of the first, as for ``overfit_batches``.
        balanced: Chooses the samples of each epoch; by default it takes all once.
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
        balanced: "BalancedOrder | None" = None,
    ) -> None:
        super().__init__(
            cast("Dataset[int]", range(size)), num_replicas=world_size, rank=rank, seed=seed, drop_last=True
        )
        self.size, self.batch_size, self.position, self.same_each_epoch = size, batch_size, position, same_each_epoch
        self.num_samples = size // batch_size * batch_size // world_size
        self.balanced = balanced

    def __iter__(self) -> Iterator[int]:
        """Yields keys, see :func:`project.engine.loading.batch.make_keys`."""
        epoch, batches_done = self.position()
        like = 0 if self.same_each_epoch else epoch
        order = self.balanced(like) if self.balanced is not None else shuffled(self.size, self.seed, like)
        mine = order[self.rank :: self.num_replicas][: self.num_samples]
        done = batches_done * self.batch_size // self.num_replicas
        return iter(make_keys(epoch, mine[done:], self.size).tolist())


class EvaluationSampler(_FixedBySeed):
    """Takes a whole dataset in one shuffled order, so that its first batches are a fair sample of it.

    The order depends on the seed alone, and its samples are dealt out in turns: the k-th global batch is the same on any
    number of devices that divides the batch size. Every process gets as many samples; where the dataset does not
    divide, the last of some processes is one that another process has as well.

    Args:
        size: How many samples the dataset has.
        seed: Another seed gives another order.
        world_size: The number of processes.
        rank: The number of this process.
        once: Whether a process leaves out what another one has as well, unless it has nothing else: Lightning refuses that.
    """

    def __init__(self, size: int, seed: int, world_size: int, rank: int, once: bool = False) -> None:
        super().__init__(cast("Dataset[int]", range(size)), num_replicas=world_size, rank=rank, seed=seed)
        order = shuffled(size, seed, 0)
        padding = self.total_size - size
        self._mine = torch.cat([order, order.repeat(-(-padding // size))[:padding]])[rank::world_size]
        self.repeated: int | None = int(self._mine[-1]) if rank >= world_size - padding else None
        """The index of the sample that another process has as well and counts, if there is one; it comes last."""
        if once and self.repeated is not None and len(self._mine) > 1:
            self._mine, self.num_samples, self.repeated = self._mine[:-1], self.num_samples - 1, None

    def __iter__(self) -> Iterator[int]:
        """Yields indices."""
        return iter(self._mine.tolist())


class BalancedOrder:
    """Takes images of small classes more often, as a function of (seed, epoch).

    Of a class with n images comes a share of an epoch that is proportional to ``n ** (1 - balance)`` (Kang et al., 2020,
    https://arxiv.org/abs/1910.09217): 0 takes each image alike often, 1 each class, 0.5 is square-root sampling. A count
    that is not whole is rounded up or down at random, so that it is exact on average. A class's images come in rounds
    that go on from one epoch to the next: all of them are used before one comes again.

    Args:
        labels: int64 (N,), of all samples.
        batch_size: The global batch size; an epoch has as many whole batches as without balance.
        seed: The seed of the run.
        balance: From 0 to 1.

    Raises:
        UserError: An image may have several classes.
    """

    def __init__(self, labels: Tensor, batch_size: int, seed: int, balance: float) -> None:
        if labels.dim() != 1:
            raise UserError("--data.class_balance needs images of one class each, but here they may have several")
        self.seed, self.size, self.length = seed, len(labels), len(labels) // batch_size * batch_size
        found: tuple[Tensor, Tensor, Tensor] = torch.unique(labels, return_inverse=True, return_counts=True)
        _, self._classes, self._sizes = found
        weights = self._sizes.double() ** (1 - balance)
        self._edges = self.length * weights.cumsum(0) / weights.sum()
        self._edges[-1] = self.length  # without the error of rounding

    def __call__(self, epoch: int) -> Tensor:
        """The samples of an epoch in their order, int64, see ``ImageBatch.indices``."""
        counts = self._counts(epoch)
        start, stop = counts[:-1].sum(0), counts.sum(0)
        first = start // self._sizes
        rounds = -(-stop // self._sizes) - first
        # every image of a class in each of its rounds
        repeats = rounds[self._classes]
        sample = torch.arange(self.size).repeat_interleave(repeats)
        number = torch.arange(len(sample)) - (repeats.cumsum(0) - repeats)[sample]
        of = self._classes[sample]
        # sorted by class, round and hash, these are the draws from the first round's first to the last round's last
        order = _by_hash(self.seed, 0, (first[of] + number) * self.size + sample, Purpose.ROUND)
        order = order[(of * (number.max() + 1) + number)[order].argsort(stable=True)]
        sample, number, of = sample[order], number[order], of[order]
        lengths = rounds * self._sizes
        draw = torch.arange(len(sample)) - (lengths.cumsum(0) - lengths)[of] + (first * self._sizes)[of]
        taken = (draw >= start[of]) & (draw < stop[of])
        drawn: Tensor = (sample + self.size * number)[taken]
        return drawn[shuffled(self.length, self.seed, epoch)]

    def _counts(self, epoch: int) -> Tensor:
        """How often each class comes in each epoch so far, int64 (epoch + 1, classes)."""
        shifts = uniform(self.seed, 0, torch.arange(epoch + 1), Purpose.BALANCE).double()
        return (self._edges + shifts).floor().diff(dim=1, prepend=torch.zeros(epoch + 1, 1)).long()


def shuffled(size: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch's samples, int64 (size,): sorted by a 48-bit hash, so the same on any machine."""
    return _by_hash(seed, epoch, torch.arange(size), Purpose.ORDER)


def _by_hash(seed: int, epoch: int, indices: Tensor, purpose: Purpose) -> Tensor:
    coarse, fine = uniform(seed, epoch, indices, purpose, 2).double().unbind(1)
    return (coarse + fine * 2.0**-24).argsort(stable=True)
