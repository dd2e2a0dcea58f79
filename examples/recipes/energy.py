"""A score of how much an image resembles the classes of a network at all."""

from collections.abc import Sequence
from pathlib import Path

import torch
from lightkeeper.images import prepare

from project.model import ImageClassifier


def log_sums(model: ImageClassifier, paths: Sequence[Path]) -> list[float]:
    """Returns the negative energy of each image file, which is low if it resembles no class.

    The logarithm of the sum of the exponentials of its logits: Liu et al., 2020,
    https://arxiv.org/abs/2010.03759, section 3.1.
    """
    sums = list[float]()
    for start in range(0, len(paths), 64):
        images = [prepare(path, model.preprocessing) for path in paths[start : start + 64]]
        with torch.inference_mode():
            logits = model.eval().evaluation_logits(torch.stack(images).to(model.device))
        sums += logits.logsumexp(1).tolist()
    return sums
