"""Test images in TensorBoard's embedding projector."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.nn.functional import interpolate

from project.errors import printable, require
from project.run.tensorboard import tensorboards

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
        """Adds them, each with its label and a thumbnail."""
        from project.explore.embeddings import embed

        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to test
        if not tensorboards(trainer):
            return
        test = data.splits["test"]
        count = min(self.count, len(test))
        batches = [
            test.__getitems__([i * len(test) // count for i in range(start, min(start + _AT_ONCE, count))])
            for start in range(0, count, _AT_ONCE)
        ]
        there = [batch.labels >= 0 for batch in batches]
        images = [batch.images[kept] for batch, kept in zip(batches, there, strict=True)]
        features = torch.cat([embed(pl_module, part) for part in images])
        small = torch.cat([interpolate(part.float() / 255, (_THUMBNAIL, _THUMBNAIL), mode="area") for part in images])
        labels = torch.cat([batch.labels[kept] for batch, kept in zip(batches, there, strict=True)])
        named = [printable(pl_module.class_names[label]) for label in labels.tolist()]
        for logger in tensorboards(trainer):
            logger.experiment.add_embedding(
                features, named, small, global_step=pl_module.weights_step, tag="test/features"
            )
