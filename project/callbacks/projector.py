"""Test images in TensorBoard's embedding projector."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.nn.functional import interpolate

from project.callbacks.first_batch import title
from project.engine.errors import printable, require
from project.engine.run.loggers import tensorboards

_THUMBNAIL, _AT_ONCE = 32, 64  # pixels; images


class Projector(Callback):
    """Adds the features that the head of the network sees of test images to TensorBoard's tab PROJECTOR.

    Args:
        count: How many images, evenly spread over the test set, at most 4096.
    """

    def __init__(self, count: int = 500) -> None:
        require(2 <= count <= 4096, "--callbacks.projector.count", count, "from 2 to 4096")
        self.count = count

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Adds them, each with its classes and a thumbnail."""
        from project.analysis.embeddings import embed

        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to test
        if not tensorboards(trainer):
            return
        test = data.splits["test"]
        count = min(self.count, len(test))
        found = []
        for start in range(0, count, _AT_ONCE):
            batch = test.__getitems__([i * len(test) // count for i in range(start, min(start + _AT_ONCE, count))])
            there = (batch.labels if batch.labels.dim() == 1 else batch.labels[:, 0]) >= 0
            images = batch.images[there]
            small = interpolate(images.float() / 255, (_THUMBNAIL, _THUMBNAIL), mode="area")
            found.append((embed(pl_module, images), small, batch.labels[there]))
        features, thumbnails, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
        named = [printable(title(label, pl_module.class_names)) for label in labels.tolist()]
        for logger in tensorboards(trainer):
            logger.experiment.add_embedding(
                features, named, thumbnails, global_step=pl_module.weights_step, tag="test/features"
            )
