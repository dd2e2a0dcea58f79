"""Logits that do not depend on how a set was cut into batches."""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor


def exact_logits(model: LightningModule, images: Tensor) -> Tensor:
    """Classifies in the weights' own precision, so that no result depends on the rest of a batch.

    In bfloat16 near ties are many, and which way one falls does. A single image is computed as two: a CPU multiplies
    a vector by other instructions than a matrix, which rounds differently.

    Args:
        model: An ``ImageClassifier``, in evaluation mode.
        images: uint8 (N, 3, height, width), N above 0, on the model's device.

    Returns:
        Logits, float (N, classes).
    """
    alone = len(images) == 1
    with torch.autocast(model.device.type, enabled=False):
        logits: Tensor = model(torch.cat([images, images]) if alone else images)
    return logits[:1] if alone else logits
