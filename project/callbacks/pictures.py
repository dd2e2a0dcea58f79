"""Pictures for TensorBoard: what the network is shown, what it confuses, and where it is sure and wrong."""

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torchmetrics import CatMetric

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FirstBatchPicture(Callback):
    """Draws the first training batch of a run as the network sees it, augmented."""

    def __init__(self, count: int = 32) -> None:
        self.count = count

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Draws the first ``count`` images of the run's first batch."""
        if trainer.global_step == 0 and batch_idx == 0 and _tensorboards(trainer):
            from project.plots import image_grid  # matplotlib takes a while to import, and --help has no use for it

            titles = [pl_module.class_names[label] for label in batch.labels[: self.count].tolist()]
            add_figure(trainer, "train/first_batch", image_grid(list(batch.images[: self.count]), titles))


class ConfusionMatrixPicture(Callback):
    """Draws the confusion matrix of each evaluation."""

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws that of the validation set."""
        if not trainer.sanity_checking:
            self._draw(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws that of the test set."""
        self._draw(trainer, pl_module, "test")

    def _draw(self, trainer: Trainer, pl_module: Any, split: str) -> None:
        if _tensorboards(trainer):
            from project.plots import confusion_figure

            figure = confusion_figure(pl_module.figures[split].confusion, pl_module.class_names)
            add_figure(trainer, f"{split}/confusion_matrix", figure)


class ConfidentMistakesPicture(Callback):
    """Draws the test images that were classified wrongly with the greatest confidence.

    Args:
        count: How many.
    """

    def __init__(self, count: int = 24) -> None:
        self.count = count
        self._best: Tensor | None = None

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps the most confident mistakes so far."""
        confidence, predicted = outputs.softmax(1).max(1)
        wrong = (predicted != batch.labels) & (batch.labels >= 0)
        confidence = torch.where(wrong, confidence, -1.0).float()
        rows = torch.stack([confidence, batch.indices.float(), batch.labels.float(), predicted.float()], dim=1)
        self._best = self._largest(rows if self._best is None else torch.cat([self._best, rows]))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws them, gathered from all processes."""
        if self._best is None:
            return
        together = CatMetric(nan_strategy="disable").to(self._best.device)
        together.update(self._best)
        rows = self._largest(together.compute()).tolist()
        self._best = None
        mistakes = [(confidence, int(i), int(true), int(said)) for confidence, i, true, said in rows if confidence >= 0]
        if mistakes and _tensorboards(trainer):
            from project.plots import image_grid

            datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit or test
            test, names = datamodule.splits["test"], pl_module.class_names
            titles = [f"{names[said]} {confidence:.0%}\nis {names[true]}" for confidence, _, true, said in mistakes]
            add_figure(
                trainer, "test/confident_mistakes", image_grid([test.image(i) for _, i, _, _ in mistakes], titles)
            )

    def _largest(self, rows: Tensor) -> Tensor:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, max(0, self.count - len(rows))), value=-1.0)
        return rows[rows[:, 0].topk(self.count).indices]


def add_figure(trainer: Trainer, tag: str, figure: "Figure") -> None:
    """Adds a picture to each TensorBoard of the run."""
    for logger in _tensorboards(trainer):
        logger.experiment.add_figure(tag, figure, global_step=trainer.global_step)


def _tensorboards(trainer: Trainer) -> list[TensorBoardLogger]:
    """Those that this process writes to."""
    loggers = trainer.loggers if trainer.is_global_zero else []
    return [logger for logger in loggers if isinstance(logger, TensorBoardLogger)]
