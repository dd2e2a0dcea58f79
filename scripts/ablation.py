"""Measures what each part of ``configs/cifar10_cpu.yaml`` contributes, by leaving it out: ``python scripts/ablation.py``."""

import sys

from compare import compare
from torch import nn

from project.model.nets.airbench import Airbench

PARTS = {
    "first layer not whitened": ["--model.arch", "ablation.unwhitened"],
    "usual random initialisation": ["--model.arch", "ablation.initialised_as_usual"],
    "Adam in place of Muon": [
        *("--model.optimizer", "Adam", "--model.optimizer.lr", "0.01", "--model.optimizer.betas", "[0.8,0.95]")
    ],
    "mirrored at random": ["--data.flip", "true"],
    "no label smoothing": ["--model.loss.label_smoothing", "0"],
}
"""What leaves out each part; Adam is set as in Muon, for what is no kernel, and not tuned for kernels."""


def unwhitened(num_classes: int) -> nn.Module:
    """Airbench with an ordinary first convolution, which is trained."""
    network = Airbench(num_classes)
    network.stem[0] = nn.Conv2d(3, 24, 2)
    return network


def initialised_as_usual(num_classes: int) -> nn.Module:
    """Airbench whose later convolutions begin at random, as torch has it."""
    network = Airbench(num_classes)
    for group in (network.layer1, network.layer2, network.layer3):
        for layer in group:
            if isinstance(layer, nn.Conv2d):
                layer.reset_parameters()
    return network


if __name__ == "__main__":
    compare(PARTS, __doc__, "configs/cifar10_cpu.yaml", sys.argv[1:])
