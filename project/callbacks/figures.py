"""Plots of a run: in TensorBoard, and as image files in the run's folder."""

import math
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from torch import Tensor

from project.analysis.evaluation import CollectPredictions
from project.analysis.tables import named
from project.engine.number_types import PositiveInt
from project.engine.run.files import whole_file
from project.engine.run.folder import PLOTS
from project.engine.run.loggers import add_figure, tensorboards


class FirstBatchPlot(Callback):
    """Draws the first training batch of a run as the network sees it, augmented."""

    def __init__(self, count: PositiveInt = 32) -> None:
        self.count = count

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Draws the first ``count`` images of the run's first batch."""
        if trainer.global_step == 0 and batch_idx == 0 and tensorboards(trainer):
            batch = pl_module.as_batch(batch)
            if batch.images.dim() == 4:  # features may come in place of images
                from project.analysis.plots import image_grid  # matplotlib takes a while to import

                titles = [
                    named(label, pl_module.class_names)
                    for label in batch.labels[: self.count].tolist()
                ]
                add_figure(
                    trainer,
                    "train/first_batch",
                    image_grid(batch.images[: self.count].unbind(), titles),
                )


class ConfusionMatrixPlot(Callback):
    """Draws the confusion matrix of ten epochs at most, as many as TensorBoard shows, and of evaluations after training."""

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws it, if each image has one class; it takes 0.2 s, more than some epochs."""
        every = max(
            1, math.ceil((trainer.max_epochs or 1) / 10)
        )  # -1 epochs: as long as something else allows
        if trainer.state.fn == "fit" and (trainer.current_epoch + 1) % every:
            return
        split = "test" if trainer.testing else "val"
        results = pl_module.results.get(split)
        if (
            trainer.sanity_checking
            or not tensorboards(trainer)
            or results is None
            or results.confusion.dim() != 2
        ):
            return
        from project.analysis.plots import confusion_figure

        figure = confusion_figure(results.confusion, pl_module.class_names)
        add_figure(
            trainer,
            f"{split}/confusion_matrix",
            figure,
            pl_module.weights_step if trainer.testing else None,
        )

    on_validation_end = on_test_end


class ConfidentMistakesPlot(Callback):
    """Draws the ``count`` test images that were classified wrongly with the greatest confidence."""

    def __init__(self, count: PositiveInt = 24) -> None:
        self.count = count
        self._collect = CollectPredictions()

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps the predictions, if the model returns logits."""
        if isinstance(outputs, Tensor) and hasattr(batch, "indices"):
            self._collect.on_test_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws the mistakes of all processes."""
        self._collect.on_test_epoch_end(trainer, pl_module)
        found, self._collect.predictions = self._collect.predictions, None
        if found is None or not tensorboards(trainer):
            return
        if surest := found.confident(correct=False, count=self.count):
            from project.analysis.plots import image_grid

            data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit or test
            names = pl_module.class_names
            images = [data.splits["test"].image(int(found.indices[at])) for at in surest]
            shown = (
                field[surest].tolist()
                for field in (found.predicted, found.confidence, found.labels)
            )
            titles = [
                f"{named(a, names)} {p:.0%}\nis {named(b, names)}"
                for a, p, b in zip(*shown, strict=True)
            ]
            add_figure(
                trainer,
                "test/confident_mistakes",
                image_grid(images, titles),
                pl_module.weights_step,
            )


class PlotFiles(Callback):
    """Draws curves, confusion matrix and classes into PNG files in ``plots/`` in the run's folder, after the test."""

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws the curves if there is a TensorBoard, and the classes if they are at most a hundred."""
        test, names = pl_module.results.get("test"), pl_module.class_names
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by a connector
            return
        from project.analysis.plots import (
            class_figure,
            confusion_figure,
            curves_figure,
            read_curves,
        )

        figures: dict[str, Any] = {}
        run = Path(trainer.default_root_dir)
        (run / PLOTS).mkdir(exist_ok=True)
        for logger in tensorboards(trainer):
            logger.save()
            figures["curves"] = curves_figure(read_curves(run))
        if (
            test is not None and test.confusion.dim() == 2
        ):  # there is none where images may have several classes
            figures["confusion_matrix"] = confusion_figure(test.confusion, names)
        if test is not None and len(names) <= 100:  # bars of more cannot be read
            figures["classes"] = class_figure(test.per_class, names)
        for name, figure in figures.items():
            with whole_file(run / PLOTS / f"{name}.png") as partial:
                figure.savefig(partial, format="png")
