"""Inference: exact logits, and test-time augmentation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

_HALF_PRECISION = (torch.float16, torch.bfloat16)

Views = Literal["flip", "flip_and_shift"]
"""An image and its mirror image; and also both shifted by a pixel up and left, down and right."""


def exact_logits(model: nn.Module, images: Tensor, exact: bool = True) -> Tensor:
    """Classifies in float32 or float64, so that no result depends on the rest of a batch.

    In bfloat16, near ties are frequent and their order arbitrary; ``exact=False`` accepts that.
    Half-precision weights, those of ``bf16-true``, are converted, as when a checkpoint is loaded. A
    single image is computed as two, as a CPU rounds products with a vector and with a matrix
    differently.
    """
    classify: Callable[[Tensor], Tensor] = model
    if not exact:
        return classify(images).float()
    if next(model.parameters()).dtype in _HALF_PRECISION:
        weights = {
            name: value.float()
            for name, value in model.state_dict().items()
            if value.is_floating_point()
        }
        classify = partial(functional_call, model, weights)
    count = len(images)
    if count == 1:
        images = torch.cat([images, images])
    with torch.autocast(images.device.type, enabled=False), _without_tf32():
        return classify(images)[:count]


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Disables TF32 in convolutions, which rounds their inputs to 10 bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def mean_logits(
    classify: Callable[[Tensor], Tensor], images: Tensor, views: Views | None
) -> Tensor:
    """Returns logits, averaged over several views of each image unless ``views`` is None.

    With ``flip_and_shift``, the unshifted views have half of the weight, and reflection pads the
    shifted ones, as in Jordan, 2024, section 3.5, https://arxiv.org/abs/2404.00498.
    """
    if views is None:
        return classify(images)

    def flip_averaged(view: Tensor) -> Tensor:
        return (classify(view) + classify(view.flip(3))) / 2

    logits = flip_averaged(images)
    if views == "flip":
        return logits
    wide = torch.cat([images[..., 1:2], images, images[..., -2:-1]], dim=3)
    padded = torch.cat([wide[:, :, 1:2], wide, wide[:, :, -2:-1]], dim=2)
    shifted = (flip_averaged(padded[:, :, :-2, :-2]) + flip_averaged(padded[:, :, 2:, 2:])) / 2
    return (logits + shifted) / 2


def logits_and_features(model: nn.Module, head: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a model's logits and its head's input, of one uncompiled forward pass."""
    features: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with hook, torch.compiler.set_stance("force_eager"):  # a compiled network runs no hook
        return model(images), features[-1]
