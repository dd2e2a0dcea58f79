"""The training loss: cross entropy, or any function of logits and labels that says what each image costs."""

import copy
import warnings
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from project.engine.errors import UserError, require
from project.engine.run.settings import plain_attributes

Loss = nn.Module | Callable[..., Any]
"""Takes logits, float (N, classes), and labels, int64 (N,) or soft, float (N, classes); returns float (N,)."""

_SMOOTHING = 0.1
_PREFIX = "criterion."  # of its buffers among the classifier's


def build_loss(loss: Loss | None, label_smoothing: float | None, num_classes: int) -> Loss:
    """Checks the loss that was given, or builds cross entropy.

    Args:
        loss: What was given, if anything.
        label_smoothing: What the default loss takes, 0.1 where None; nothing else does.
        num_classes: How many classes there are.

    Raises:
        UserError: It takes something else than logits and labels, does not return each image's loss, or has parameters
            to train.
    """
    if loss is None:
        smoothing = _SMOOTHING if label_smoothing is None else label_smoothing
        require(0 <= smoothing <= 1, "--model.label_smoothing", smoothing, "from 0 to 1")
        return nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="none")
    if label_smoothing is not None:
        raise UserError(
            "--model.label_smoothing belongs to the default loss and is not used by --model.loss; leave it out (torch's"
            " CrossEntropyLoss has its own, --model.loss.label_smoothing)"
        )
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise UserError(
            f"--model.loss: {_name(loss)} has parameters of its own, which the network's optimizer does not train; make"
            " them part of the network of a subclass of ImageClassifier"
        )
    _try(copy.deepcopy(loss), num_classes)
    return loss


def require_per_image(losses: Any, images: int, source: str) -> None:
    """Compares what a loss returned with what it must be.

    Args:
        losses: What it returned.
        images: How many images it was given.
        source: What is to be named in the error.

    Raises:
        UserError: It is not one number for each image.
    """
    if not isinstance(losses, Tensor) or losses.shape != (images,):
        found = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise UserError(
            f"{source} must return each image's loss, of shape ({images},), got {found}; with reduction='none', not a"
            " mean, which would depend on how many devices share a batch"
        )


def loss_summary(loss: Loss) -> dict[str, Any]:
    """The loss's name and its plain options, for people to read."""
    options = plain_attributes(loss, signature(type(loss)).parameters) if isinstance(loss, nn.Module) else {}
    return {"name": _name(loss), **{name: value for name, value in options.items() if name != "reduction"}}


def without_loss(weights: Any) -> Any:
    """Leaves the buffers of a loss out of a state dict, which only training needs; what is none stays as it is."""
    if not isinstance(weights, Mapping):
        return weights
    return {name: value for name, value in weights.items() if not str(name).startswith(_PREFIX)}


def _try(loss: Loss, num_classes: int) -> None:
    """Calls the loss once, so that a run does not end at its first step."""
    images = num_classes + 1
    logits, labels = torch.zeros(images, num_classes), torch.zeros(images, dtype=torch.int64)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            losses = loss(logits, labels)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--model.loss: {_name(loss)} does not take logits and labels: {reason}") from error
    require_per_image(losses, images, f"--model.loss: {_name(loss)}")


def _name(loss: Loss) -> str:
    name: str = getattr(loss, "__name__", type(loss).__name__)
    return name
