"""The most confident mistakes on the test set in TensorBoard."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torchmetrics import CatMetric

from project.engine.errors import require
from project.engine.run.loggers import add_figure, tensorboards


class ConfidentMistakesPlot(Callback):
    """Draws the test images that were classified wrongly with the greatest confidence.

    Args:
        count: How many, at least 1.

    Raises:
        UserError: There would be none.
    """

    def __init__(self, count: int = 24) -> None:
        require(count >= 1, "--callbacks.confident_mistakes.count", count, "at least 1")
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
        """Keeps the most confident mistakes so far; of images that may have several classes, none."""
        if batch.labels.dim() != 1:
            return
        predicted = outputs.argmax(1)
        confidence = pl_module.probabilities(outputs.float()).gather(1, predicted[:, None])[:, 0]
        wrong = (predicted != batch.labels) & (batch.labels >= 0)
        confidence = torch.where(wrong, confidence, -1.0)
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
        if mistakes and tensorboards(trainer):
            from project.analysis.plots import image_grid

            datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit or test
            test, names = datamodule.splits["test"], pl_module.class_names
            titles = [f"{names[said]} {confidence:.0%}\nis {names[true]}" for confidence, _, true, said in mistakes]
            figure = image_grid([test.image(i) for _, i, _, _ in mistakes], titles)
            add_figure(trainer, "test/confident_mistakes", figure, pl_module.weights_step)

    def _largest(self, rows: Tensor) -> Tensor:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, max(0, self.count - len(rows))), value=-1.0)
        return rows[rows[:, 0].topk(self.count).indices]
