"""Plots of a run: in TensorBoard, and as image files in the run's folder."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from torch import Tensor

from project.analysis import plots
from project.analysis.tables import class_rates


def log_figure(trainer: Trainer, tag: str, draw: Callable[[], Figure]) -> None:
    """Logs a figure to the loggers that take images: TensorBoard's, W&B's and MLflow's.

    Calls ``draw`` only if there is one. The step is where Lightning logs the newest metrics.
    """
    kinds = TensorBoardLogger | WandbLogger | MLFlowLogger
    loggers = [logger for logger in trainer.loggers if isinstance(logger, kinds)]
    if not loggers or not trainer.is_global_zero:
        return
    figure = draw()
    step = max(trainer.global_step - 1, 0)
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(tag, figure, global_step=step)
        elif isinstance(logger, WandbLogger):
            logger.log_image(tag, [figure], step)
        else:
            logger.experiment.log_figure(logger.run_id, figure, f"{tag}/{step}.png")


class FirstBatchPlot(Callback):
    """Draws the first training batch of a run as the network sees it, augmented.

    Args:
        count: How many of its images.
    """

    def __init__(self, count: PositiveInt = 32) -> None:
        self.count = count

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Sequence[Tensor], batch_idx: int
    ) -> None:
        """Draws the first ``count`` images of the run's first batch, if it is one of images."""
        # or features, images without labels, or the batches of several loaders
        is_pair = isinstance(batch, Sequence) and len(batch) > 1 and isinstance(batch[0], Tensor)
        if trainer.global_step or batch_idx or not is_pair or batch[0].dim() != 4:
            return
        images, labels = batch[0], batch[1]

        def draw() -> Figure:  # reading from the device waits, so only if a logger draws
            names = [pl_module.label_names(label) for label in labels[: self.count].cpu()]
            return plots.image_grid(images[: self.count].unbind(), names, columns=4)

        log_figure(trainer, "train/first_batch", draw)


class ConfusionMatrixPlot(Callback):
    """Draws the confusion matrix in about ten epochs of training, and of evaluations after it."""

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws the matrix if each image has one class; not in every epoch, as it takes 0.2 s."""
        # max_epochs is -1 if something else ends training
        every = max(1, math.ceil((trainer.max_epochs or 1) / 10))
        if trainer.state.fn == "fit" and (trainer.current_epoch + 1) % every:
            return
        split = "test" if trainer.testing else "val"
        results = pl_module.results.get(split, {})
        is_known = "confusion_matrix" in results and pl_module.has_one_class
        if trainer.sanity_checking or not is_known:
            return
        log_figure(
            trainer,
            f"{split}/confusion_matrix",
            lambda: plots.confusion_figure(results["confusion_matrix"], pl_module.class_names),
        )

    on_test_end = on_validation_end


class ConfidentMistakesPlot(Callback):
    """Draws test images that were classified wrongly, those of the greatest confidence first.

    Args:
        count: How many.
    """

    def __init__(self, count: PositiveInt = 24) -> None:
        self.count = count

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws the mistakes of all processes, if the model's steps return logits."""
        predictions = pl_module.predictions
        if predictions is None:
            return
        surest = predictions.confident(correct=False, count=self.count)
        if not surest:
            return

        def draw() -> Figure:
            name = pl_module.label_names
            images = [predictions.images.image(int(predictions.indices[row])) for row in surest]
            titles = [
                f"{name(predictions.predicted[row])} {float(predictions.confidence[row]):.0%}\n"
                f"is {name(predictions.labels[row])}"
                for row in surest
            ]
            return plots.image_grid(images, titles, columns=4)

        log_figure(trainer, "test/confident_mistakes", draw)


class PlotFiles(Callback):
    """Draws curves, confusion matrix and classes into the run's ``plots/`` after the test."""

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws curves if TensorBoard logs them, and the rates of up to 100 classes."""
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        test = pl_module.results.get("test", {})
        names = pl_module.class_names
        run = Path(trainer.default_root_dir)
        figures: dict[str, Figure] = {}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.save()
                figures["curves"] = plots.curves_figure(
                    plots.read_curves(logger.log_dir), plots.read_steps_per_epoch(run)
                )
        is_known = "confusion_matrix" in test
        # a multi-label model has one matrix for each class
        if is_known and pl_module.has_one_class:
            figures["confusion_matrix"] = plots.confusion_figure(test["confusion_matrix"], names)
        if is_known and len(names) <= 100:  # more bars would be illegible
            figures["classes"] = plots.class_figure(class_rates(test), names)
        (run / "plots").mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(run / "plots" / f"{name}.png")
