"""The time of a training step on many devices: what travels over which link, and what hides behind the backward pass.

Not modelled: loading, messages of a few kilobytes such as BatchNorm's buffers, and links that others use, too.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

CHECKED = 8  # the most processes on which scripts/scaling_check.py has measured what this predicts


class Link(NamedTuple):
    """The slowest connection between neighbours: bytes a second, in each direction, and seconds a message takes besides."""

    bandwidth: float
    latency: float


class Bucket(NamedTuple):
    """Bytes of gradients that DDP sends together, and the seconds of the backward pass until the last of them is ready."""

    size: float
    ready: float


class Step(NamedTuple):
    """A training step on one device, in seconds; ``spread`` is the standard deviation of its time."""

    images: float
    forward: float
    backward: float
    update: float
    spread: float
    buckets: tuple[Bucket, ...]


class Forecast(NamedTuple):
    """A step of several processes, its images per second, and the share of communication behind the backward pass."""

    seconds: float
    rate: float
    hidden: float


def ring(size: float, processes: int, link: Link) -> float:
    """Returns the seconds of a ring all-reduce: 2(N-1) times, each process sends an Nth to its neighbour.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009); with latency as
    in Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).
    gloo does this in segments, two of them under way; for small messages on many machines, NCCL may choose trees.
    """
    return 2 * (processes - 1) * (size / processes / link.bandwidth + link.latency)


def server(size: float, processes: int, link: Link) -> float:
    """Returns the seconds in which one process receives the gradients of all others, and then answers each over its link."""
    return 2 * (processes - 1) * size / link.bandwidth + 2 * link.latency * (processes > 1)


def forecast(
    step: Step,
    processes: int,
    link: Link,
    algorithm: Callable[[float, int, Link], float] = ring,
    compression: float = 1.0,
    accumulate: int = 1,
) -> Forecast:
    """Predicts a step of several processes.

    A bucket travels when it is ready and the one before has arrived, during the backward pass (Li et al., "PyTorch
    Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020); of accumulated batches, the last one's does.
    All wait for the slowest process: the maximum of N normal times is expected at most sqrt(2 ln N) deviations late.
    """
    end = communication = 0.0
    for size, ready in step.buckets:
        seconds = algorithm(size * compression, processes, link)
        end, communication = max(end, ready) + seconds, communication + seconds
    exposed = max(0.0, end - step.backward)
    wait = step.spread * math.sqrt(2 * math.log(processes) * accumulate)
    seconds = accumulate * (step.forward + step.backward) + exposed + step.update + wait
    hidden = 1 - exposed / communication if communication else 1.0
    return Forecast(seconds, processes * accumulate * step.images / seconds, hidden)


def bounds(step: Step, processes: int, link: Link) -> list[float]:
    """Returns the images per second if nothing hides behind the backward pass, and if the link is busy from its start."""
    ready = [
        step._replace(buckets=tuple(Bucket(one.size, when) for one in step.buckets))
        for when in (step.backward, 0)
    ]
    return [forecast(one, processes, link).rate for one in ready]


def with_batch(small: Step, large: Step, images: float) -> Step:
    """Returns the step of another batch size, each time on the line through those of two measured ones."""
    share = (
        (images - small.images) / (large.images - small.images)
        if large.images != small.images
        else 0.0
    )
    times = (one + share * (other - one) for one, other in zip(small[:5], large[:5], strict=True))
    _, forward, backward, update, spread = times
    pairs = zip(small.buckets, large.buckets, strict=True)
    buckets = (
        Bucket(one.size, one.ready + share * (other.ready - one.ready)) for one, other in pairs
    )
    return Step(images, forward, backward, update, spread, tuple(buckets))
