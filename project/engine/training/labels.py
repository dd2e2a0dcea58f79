"""A model's classes by name, predictions for image files, and figures for loggers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ..loading.files import prepare
from ..preprocessing import Preprocessing
from ..run.loggers import add_figure, is_logged
from ..upstream import trainer_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Prediction(NamedTuple):
    """The most probable class of an image, its probability, and those of all classes by name.

    If a model has attributes, the label names the most probable class of each, and the probability
    is the least of theirs.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


class LabelModule(LightningModule):
    """What a classifier offers to callbacks, commands and notebooks beside its steps.

    Attributes:
        class_names: The classes in the order of their labels.
        preprocessing: Size, crop and normalisation of images.
    """

    has_one_class: ClassVar[bool] = True
    """True if each image has one class; otherwise any number: labels (N, classes) of 0 and 1."""

    class_names: list[str]
    preprocessing: Preprocessing

    @property
    def attributes(self) -> dict[str, dict[str, int]]:
        """Returns the classes of each exclusive attribute, by position; by default none."""
        return {}

    @property
    def has_any_labels(self) -> bool:
        """True if an image may have any number of classes, and not one of each attribute."""
        return not self.has_one_class and not self.attributes

    def choices(self) -> dict[str, dict[str, int]]:
        """Returns the positions of classes to choose among, by attribute; ``""`` if it has none."""
        names = {name: position for position, name in enumerate(self.class_names)}
        return self.attributes or {"": names}

    def ranked(self, probabilities: Tensor) -> dict[str, Tensor]:
        """Sorts the positions of each choice's classes, most probable first, int64 (N, classes)."""
        orders: dict[str, Tensor] = {}
        for attribute, values in self.choices().items():
            positions = torch.tensor([*values.values()], device=probabilities.device)
            order = probabilities[:, positions].argsort(dim=1, descending=True, stable=True)
            orders[attribute] = positions[order]
        return orders

    def label_names(self, label: Tensor) -> str:
        """Names the class of an image, or all classes that it has a share of.

        Args:
            label: int64 (), or (classes,).
        """
        if label.dim() == 0:
            return self.class_names[label]
        positions = (label > 0).nonzero().flatten()
        return " ".join(self.class_names[position] for position in positions)

    def predict_files(self, paths: Sequence[str | Path], batch_size: int = 64) -> list[Prediction]:
        """Labels image files, prepared as the model's preprocessing says, in their order.

        Args:
            paths: The files.
            batch_size: The number of images that the model sees at a time; no result depends on it.

        Raises:
            UnreadableFileError: A file is no image.
        """
        self.eval()
        predictions: list[Prediction] = []
        for start in range(0, len(paths), batch_size):
            files = paths[start : start + batch_size]
            images = torch.stack([prepare(path, self.preprocessing) for path in files])
            with torch.inference_mode():
                probabilities = self.predict_step(images.to(self.device), 0).float()
            orders = self.ranked(probabilities).values()
            best = torch.stack([order[:, 0] for order in orders], dim=1)
            for positions, row in zip(best.tolist(), probabilities.tolist(), strict=True):
                label = " ".join(self.class_names[position] for position in positions)
                probability = min(row[position] for position in positions)
                by_name = dict(zip(self.class_names, row, strict=True))
                predictions.append(Prediction(label, probability, by_name))
        return predictions

    @property
    def is_fitting(self) -> bool:
        """True while a trainer fits the model, also in its validation."""
        trainer = trainer_of(self)
        return trainer is not None and trainer.state.fn == "fit"

    @property
    def is_logging(self) -> bool:
        """True if the current batch concludes a step after which training is logged."""
        return is_logged(self.trainer)

    def log_figure(self, tag: str, draw: "Callable[[], Figure]", step: int | None = None) -> None:
        """Draws a figure for the loggers that take images: TensorBoard's, W&B's and MLflow's.

        Args:
            tag: The figure's name, such as ``val/confusion_matrix``.
            draw: Draws it; is not called without such a logger.
            step: The step to log at, by default where Lightning logs the newest metrics.
        """
        add_figure(self.trainer, tag, draw, step)
