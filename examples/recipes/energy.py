"""A score of how much an image resembles the classes of a network at all."""

from collections.abc import Sequence
from pathlib import Path

import torch
from lightkeeper.images import prepare
from torch import Tensor

from project.model import ImageClassifier


def file_logits(model: ImageClassifier, paths: Sequence[Path]) -> Tensor:
    """Returns the logits by which ``predict`` labels image files, float (N, classes)."""
    logits = list[Tensor]()
    for start in range(0, len(paths), 64):
        images = [prepare(path, model.preprocessing) for path in paths[start : start + 64]]
        batch = torch.stack(images).to(model.device)
        with torch.inference_mode():
            views = model.test_time_augmentation
            logits.append(model.eval().evaluation_logits(batch, views).float())
    return torch.cat(logits)


def energy(logits: Tensor) -> Tensor:
    """Returns each image's energy, (N,), which is high if it resembles no class.

    Minus the logarithm of the sum of the exponentials of its logits: Liu et al., 2020,
    https://arxiv.org/abs/2010.03759, section 3.1.
    """
    return -logits.logsumexp(1)
