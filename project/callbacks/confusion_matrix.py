"""Confusion matrices in TensorBoard."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from project.engine.run.loggers import add_figure, tensorboards


class ConfusionMatrixPlot(Callback):
    """Draws the confusion matrix of each evaluation."""

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws that of the validation set."""
        if not trainer.sanity_checking:
            self._draw(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws that of the test set."""
        self._draw(trainer, pl_module, "test")

    def _draw(self, trainer: Trainer, pl_module: Any, split: str) -> None:
        if (
            tensorboards(trainer) and pl_module.results[split].exact is None
        ):  # there is none of several classes an image
            from project.analysis.plots import confusion_figure

            figure = confusion_figure(pl_module.results[split].confusion, pl_module.class_names)
            step = pl_module.weights_step if split == "test" else None
            add_figure(trainer, f"{split}/confusion_matrix", figure, step)
