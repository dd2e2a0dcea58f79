"""The first training batch in TensorBoard."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from project.engine.run.loggers import add_figure, tensorboards


class FirstBatchPlot(Callback):
    """Draws the first training batch of a run as the network sees it, augmented."""

    def __init__(self, count: int = 32) -> None:
        self.count = count

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Draws the first ``count`` images of the run's first batch."""
        if trainer.global_step == 0 and batch_idx == 0 and tensorboards(trainer) and batch.images[0].numel():
            from project.analysis.plots import (
                image_grid,  # matplotlib takes a while to import, and --help has no use for it
            )

            titles = [title(label, pl_module.class_names) for label in batch.labels[: self.count].tolist()]
            add_figure(trainer, "train/first_batch", image_grid(list(batch.images[: self.count]), titles))


def title(label: int | list[float], class_names: list[str]) -> str:
    """The class of an image, or those that it has a share of."""
    if isinstance(label, list):
        return ", ".join(name for name, share in zip(class_names, label, strict=True) if share > 0)
    return class_names[label]
