"""Weights of the classes in the training loss, given or computed from the training set."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from project.engine.errors import UserError, printable, require

_OPTION = "--model.class_weights"


class ClassWeights:
    """Multiplies each image's loss by the weight of its class.

    Nothing is divided by the weights in a batch, as torch's weighted mean does, which would depend on how a batch is
    shared out among devices. It is no module: its numbers would be buffers, which a moving average would average too.

    Args:
        given: ``balanced``, or a number for each class; None leaves losses as they are.
        num_classes: How many classes there are.
        one_class: Whether each image has one class.

    Raises:
        UserError: There is another number of weights, one is negative or not finite, or all are 0; or an image may have
            several classes.
    """

    def __init__(
        self, given: Literal["balanced"] | Sequence[float] | None, num_classes: int, one_class: bool = True
    ) -> None:
        self._are_asked, self._is_balanced = given is not None, given == "balanced"
        self._values: Tensor | None = None
        if given is not None and not one_class:
            raise UserError(f"{_OPTION} needs images of one class each, but here they may have several")
        if given is not None and given != "balanced":
            usable = len(given) == num_classes and all(math.isfinite(one) and one >= 0 for one in given) and any(given)
            require(usable, _OPTION, list(given), f"'balanced' or {num_classes} numbers from 0 that are not all 0")
            self._values = torch.tensor([float(one) for one in given])

    def count(self, data: Any, class_names: Sequence[str]) -> None:
        """Computes balanced weights, where none are given, before each training; on every process the same.

        Args:
            data: The data module after its ``setup``, with ``class_counts()``.
            class_names: The classes, for the error.

        Raises:
            UserError: The data module does not count, or a class has no training image.
        """
        if self._is_balanced:
            counts = getattr(data, "class_counts", None)
            if counts is None:
                name = "a data loader" if data is None else type(data).__name__
                raise UserError(
                    f"{_OPTION} balanced needs class_counts() of a data module, which {name} does not have; give"
                    f" {len(class_names)} numbers instead"
                )
            self._values = torch.tensor(balanced_weights(counts(), class_names))

    def __call__(self, losses: Tensor, labels: Tensor) -> Tensor:
        """Weights losses.

        Args:
            losses: float (N,).
            labels: int64 (N,), or soft ones, float (N, classes), which get the mean of the weights by their shares.

        Returns:
            float (N,).
        """
        if not self._are_asked:
            return losses
        values = self._values
        if values is None:
            raise UserError(f"{_OPTION} balanced is computed when trainer.fit starts; outside of it, give the numbers")
        if values.device != losses.device:
            self._values = values = values.to(losses.device)
        return losses * (values[labels] if labels.dim() == 1 else labels.to(values.dtype) @ values)

    def summary(self) -> dict[str, list[float] | str]:
        """The weights as ``class_weights``, for people to read: ``balanced`` until they are known, nothing without any."""
        known = "balanced" if self._values is None else self._values.tolist()
        return {"class_weights": known} if self._are_asked else {}


def balanced_weights(counts: Sequence[int], class_names: Sequence[str]) -> list[float]:
    """Weights by which each class counts alike in the mean loss: n / (classes * n of the class), as in scikit-learn.

    Their mean over the training images is 1.

    Args:
        counts: How many training images each class has.
        class_names: The classes, for the error.

    Raises:
        UserError: A class has none.
    """
    for name, count in zip(class_names, counts, strict=True):
        if count == 0:
            raise UserError(
                f"{_OPTION} balanced has no weight for the class {printable(name)}, which has no training image; give"
                f" {len(class_names)} numbers instead"
            )
    return [sum(counts) / (len(counts) * count) for count in counts]
