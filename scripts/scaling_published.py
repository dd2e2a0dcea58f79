"""Predicts published efficiencies from other publications: ``python scripts/scaling_published.py``.

Of each step, two thirds are taken for the backward pass, which is two of a step's three convolutions; links have no latency.
"""

from typing import NamedTuple

from scaling import Bucket, Link, Step, bounds
from torchvision import models


class Published(NamedTuple):
    """A published efficiency, and what is known of one device's step and of the network."""

    name: str
    arch: str
    processes: int
    images: int
    rate: float  # images per second of one device
    gbit: float  # of a machine
    efficiency: float


ROWS = [
    # pytorch/benchmarks/distributed/ddp/README.md: 8 V100 and 4 x 100 Gbit/s a machine, 0.100 s with DDP on one, 0.104 on 16
    Published("DDP, ResNet-50, 16 V100", "resnet50", 16, 32, 32 / 0.100, 400, 0.100 / 0.104),
    # horovod's README and docs/benchmarks.md, first 32 and then 128 servers of 4 Pascal GPUs; one P100 from tensorflow.org/performance/
    # benchmarks, May 2017, synthetic data; of ResNet-101, 1,656.82 images/s on 16 GPUs from the former
    Published("Horovod, VGG-16, 128 P100", "vgg16", 128, 64, 154, 25, 0.79),
    Published("Horovod, VGG-16, 512 P100", "vgg16", 512, 64, 154, 25, 0.68),
    Published("Horovod, Inception v3, 128 P100", "inception_v3", 128, 64, 142, 25, 0.90),
    Published("Horovod, Inception v3, 512 P100", "inception_v3", 512, 64, 142, 25, 0.90),
    Published("Horovod, ResNet-101, 128 P100", "resnet101", 128, 64, 1656.82 / 16, 25, 0.90),
    Published("Horovod, ResNet-101, 512 P100", "resnet101", 512, 64, 1656.82 / 16, 25, 0.90),
    # Goyal et al., arXiv:1706.02677: 8 P100 and 50 Gbit/s a machine, from 8 to 256; one P100 as above, with 32 images
    Published("Goyal et al., ResNet-50, 256 P100", "resnet50", 256, 32, 195, 50, 0.90),
    # github.com/mlcommons/training_results_v3.1, Dell XE9680, result_0: 8 H100 and 8 x 400 Gbit/s a machine, 56,430 images/s
    # on one with 400 images a device, 100,775 on two with 200; float16 gradients are half the bytes that are taken here
    Published(
        "MLPerf v3.1, ResNet-50, 16 H100", "resnet50", 16, 200, 56430 / 8, 3200, 100775 / 2 / 56430
    ),
]


def main() -> None:
    """Prints a row for each, if nothing of the communication hides behind the backward pass, and if all that fits does."""
    for row in ROWS:
        options = {"init_weights": False} if row.arch == "inception_v3" else {}
        parameters = sum(one.numel() for one in getattr(models, row.arch)(**options).parameters())
        seconds = row.images / row.rate
        step = Step(
            row.images, seconds / 3, seconds * 2 / 3, 0.0, 0.0, (Bucket(4 * parameters, 0.0),)
        )
        low, high = (
            rate / row.processes / row.rate
            for rate in bounds(step, row.processes, Link(row.gbit * 1e9 / 8, 0.0))
        )
        print(
            f"| {row.name} | {row.efficiency:.0%} | {low:.0%} to {high:.0%} | {100 * (high - row.efficiency):+.0f} |"
        )


if __name__ == "__main__":
    main()
