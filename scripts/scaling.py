"""Predicts training on many devices from steps measured on one, before renting them.

``python scripts/scaling.py --machines 4 --per_machine 8 --between 100 --config my.yaml``, on one idle device of the
kind to rent; all other options are those of ``project.fit``. Not modelled: loading, messages of a few kilobytes such
as BatchNorm's buffers, and links that others use, too.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from project.fit import FitCLI

CHECKED = 8
"""The most processes on which real step times were compared with these (within 5% in 29 of 30 cases)."""
STEPS = 13
WARMUP = 3  # DDP chooses its buckets after the first step


class Link(NamedTuple):
    """The slowest connection between neighbours: bytes per second in each direction, and seconds per message."""

    bandwidth: float
    latency: float


class Bucket(NamedTuple):
    """Bytes of gradients that DDP sends together, and the seconds of the backward pass until they are ready."""

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

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009); with
    latency as in Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    IJHPCA 19 (2005). For small messages on many machines, NCCL may choose trees.
    """
    return 2 * (processes - 1) * (size / processes / link.bandwidth + link.latency)


def server(size: float, processes: int, link: Link) -> float:
    """Returns the seconds in which one process receives all others' gradients and answers each over its one link."""
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
    Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020); of accumulated batches, the last one's
    does. All wait for the slowest process: the maximum of N normal times is at most sqrt(2 ln N) deviations late.
    """
    end = communication = 0.0
    for size, ready in step.buckets:
        seconds = algorithm(size * compression, processes, link)
        end = max(end, ready) + seconds
        communication += seconds
    exposed = max(0.0, end - step.backward)
    wait = step.spread * math.sqrt(2 * math.log(processes) * accumulate)
    seconds = accumulate * (step.forward + step.backward) + exposed + step.update + wait
    hidden = 1 - exposed / communication if communication else 1.0
    return Forecast(seconds, processes * accumulate * step.images / seconds, hidden)


def bounds(step: Step, processes: int, link: Link) -> list[float]:
    """Returns the images per second if nothing hides behind the backward pass, and if all does that fits."""
    rates = []
    for ready in (step.backward, 0.0):
        buckets = tuple(Bucket(bucket.size, ready) for bucket in step.buckets)
        rates.append(forecast(step._replace(buckets=buckets), processes, link).rate)
    return rates


class UnderDDP(FitCLI):
    """Trains under DDP on one device, too."""

    def before_instantiate_classes(self) -> None:
        """Chooses DDP where no other strategy was named."""
        super().before_instantiate_classes()
        if self.config.trainer.strategy == "auto":
            self.config.trainer.strategy = "ddp"


def measure(args: list[str]) -> Step:
    """Trains some steps on one device as ``project.fit`` does, under DDP, which tells when a bucket would be sent."""
    marks = list[list[float]]()
    buckets = list[list[Bucket]]()

    def mark(*_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        marks[-1].append(time.perf_counter())

    def start(*_: Any) -> None:
        marks.append([])
        buckets.append([])
        mark()

    # DDP requires this annotation
    def record(_: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        ready = time.perf_counter() - marks[-1][1]
        buckets[-1].append(Bucket(bucket.buffer().nbytes, ready))
        return noop_hook(None, bucket)

    def listen(trainer: Any, _: Any) -> None:
        trainer.strategy.model.register_comm_hook(None, record)

    marking = LambdaCallback(
        on_train_start=listen,
        on_train_batch_start=start,
        on_before_backward=mark,
        on_after_backward=mark,
        on_train_batch_end=mark,
    )
    with TemporaryDirectory() as folder:
        settings = f"max_steps={STEPS} max_epochs={STEPS} limit_val_batches=0 devices=1 num_nodes=1"
        settings += f" logger=false enable_progress_bar=false default_root_dir={folder}"
        trainer = [f"--trainer.{setting}" for setting in settings.split()]
        cli = UnderDDP([*args, *trainer, "--callbacks.last_checkpoint=false", "--name=measured"])
        cli.run.create()  # callbacks write there
        cli.trainer.callbacks.append(marking)  # type: ignore[attr-defined]  # set by a connector
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        distributed.destroy_process_group()  # Lightning keeps it until the process ends
    times = [[end - begin for begin, end in pairwise(step)] for step in marks[WARMUP:]]
    forward, backward, update = (statistics.median(part) for part in zip(*times, strict=True))
    ready = tuple(
        Bucket(bucket[0].size, statistics.median(one.ready for one in bucket))
        for bucket in zip(*buckets[WARMUP:], strict=True)
    )
    spread = statistics.stdev(map(sum, times))
    return Step(cli.datamodule.batch_size, forward, backward, update, spread, ready)


def plan(args: list[str]) -> str:
    """Measures this device, and returns the table of what is predicted of many."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    option = parser.add_argument
    option("--machines", type=int, default=4)
    option("--per_machine", type=int, default=1, help="processes of a machine, each with a device")
    option("--between", type=float, default=10.0, help="Gbit/s between machines")
    option("--within", type=float, default=100.0, help="Gbit/s between devices of a machine")
    option("--latency", type=float, default=30.0, help="microseconds per message")
    options, others = parser.parse_known_args(args)
    most = options.machines * options.per_machine
    large = measure(others)
    small = measure([*others, f"--data.batch_size={int(large.images) // most}"])
    lines = [f"{'processes':>9}{'images':>8}{'images/s':>12}{'efficiency':>12}{'hidden':>8}"]
    counts = {2**power for power in range((most - 1).bit_length())} | {most}
    for step in (large, small):
        for count in sorted(counts):
            gbit = options.within if count <= options.per_machine else options.between
            link = Link(gbit * 1e9 / 8, options.latency / 1e6)
            _, rate, hidden = forecast(step, count, link)
            efficiency = rate / count / forecast(step, 1, link).rate
            row = f"{count:>9}{int(count * step.images):>8}{rate:>12,.1f}{efficiency:>12.0%}"
            lines.append(f"{row}{hidden:>8.0%}")
        low, high = bounds(step, most, link)
        compressed = forecast(step, most, link, compression=0.5)
        accumulated = forecast(step, most, link, accumulate=4)
        lines += [
            f"  from {low:,.1f} without to {high:,.1f} with full overlap",
            f"  {compressed.rate:,.1f} with --config configs/hardware/compressed_gradients.yaml",
            f"  {accumulated.rate:,.1f} with --trainer.accumulate_grad_batches 4",
        ]
    if most > CHECKED:
        lines.append(f"more than {CHECKED} processes: a guess, see docs/results.md")
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    print(plan(sys.argv[1:]))
