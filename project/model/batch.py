"""What a step of the model needs of a batch."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from lightning.pytorch import Trainer
from torch import Tensor

from project.engine.errors import UserError


class Batch(Protocol):
    """Images and their labels, see ``project.engine.loading.batch``."""

    @property
    def images(self) -> Tensor:
        """uint8 (N, 3, height, width)."""

    @property
    def labels(self) -> Tensor:
        """int64 (N,), or soft ones, float (N, classes), in training; of a multi-label dataset, (N, classes) of 0 and 1."""


class PlainBatch(NamedTuple):
    """What a plain ``DataLoader`` yields.

    Attributes:
        images: uint8 (N, 3, height, width).
        labels: int64 (N,).
    """

    images: Tensor
    labels: Tensor


def as_batch(batch: Batch | Sequence[Tensor], trainer: Trainer | None) -> Batch:
    """Takes batches of a data module of ours, and pairs of images and labels of any other loader.

    Args:
        batch: As the loader made it and the data module changed it.
        trainer: The trainer, if there is one.

    Raises:
        UserError: It comes from a loader of one of our data modules, without the data module: then nothing augments it,
            the order is the same in each epoch, and processes count images twice.
    """
    data = None if trainer is None else trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed
    if trainer is not None and data is None and hasattr(batch, "indices"):
        raise UserError(
            "a data module's loaders need their data module for order and augmentation; call"
            f" trainer.{trainer.state.fn.value if trainer.state.fn else 'fit'}(model, datamodule=data)"
        )
    return (
        PlainBatch(*batch) if isinstance(batch, list | tuple) and not hasattr(batch, "images") else cast(Batch, batch)
    )


def images_of(batch: Tensor | Batch | Sequence[Tensor], trainer: Trainer | None) -> Tensor:
    """The images of a batch, uint8 (N, 3, height, width), which may have come without labels.

    Args:
        batch: Images, or what :func:`as_batch` takes, where labels may be missing.
        trainer: The trainer, if there is one.

    Raises:
        UserError: As for :func:`as_batch`.
    """
    if isinstance(batch, Tensor):
        return batch
    return batch[0] if isinstance(batch, Sequence) and len(batch) == 1 else as_batch(batch, trainer).images


def is_counted(labels: Tensor) -> Tensor:
    """Which images count, bool (N,), by labels (N,) or (N, classes): the others, with -1, are counted elsewhere."""
    return (labels if labels.dim() == 1 else labels[:, 0]) >= 0


def require_fitting_labels(labels: Tensor, has_one_class: bool) -> None:
    """Refuses labels that the model would fail on.

    Args:
        labels: int64 (N,), one class an image, or (N, classes), several; or soft ones, float (N, classes).
        has_one_class: Whether the model gives each image one class.

    Raises:
        UserError: They are for the other kind of model.
    """
    if labels.dim() == 1 and not has_one_class:
        raise UserError(
            "this model gives an image any number of classes, but the labels are of one class an image; see"
            " examples/multilabel_csv.py for such labels, or leave out --model"
        )
    if labels.dim() > 1 and not labels.is_floating_point() and has_one_class:
        raise UserError(
            f"the labels are {tuple(labels.shape)}, but this model gives each image one class; several take a subclass with"
            " MultilabelMetrics and a loss of its own, see examples/multilabel.py"
        )
