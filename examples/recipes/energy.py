"""A score of how much an image resembles the classes of a network at all."""

from collections.abc import Sequence
from pathlib import Path

import torch
from lightkeeper.images import FileDataset
from torch import Tensor

from project.model import ImageClassifier


def file_logits(model: ImageClassifier, paths: Sequence[Path]) -> Tensor:
    """Returns the logits by which ``predict`` labels image files, float (N, classes).

    They are NaN where a file cannot be read.
    """
    files = FileDataset(paths, torch.zeros(len(paths)), model.preprocessing, skip=True)
    logits = list[Tensor]()
    for start in range(0, len(paths), 64):
        batch = files.__getitems__([*range(start, min(start + 64, len(paths)))])
        with torch.inference_mode():
            views = model.test_time_augmentation
            rows = model.eval().evaluation_logits(batch.images.to(model.device), views).float()
        logits.append(rows.where(batch.labels.to(rows.device)[:, None] >= 0, torch.nan))
    return torch.cat(logits)


def energy(logits: Tensor) -> Tensor:
    """Returns each image's energy, (N,), which is high if it resembles no class.

    Minus the logarithm of the sum of the exponentials of its logits: Liu et al., 2020,
    https://arxiv.org/abs/2010.03759, section 3.1.
    """
    return -logits.logsumexp(1)
