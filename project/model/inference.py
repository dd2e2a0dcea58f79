"""Inference: exact logits, test-time augmentation, and the network that is exported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from project.model.normalize import Normalization

if TYPE_CHECKING:
    from project.model.classifier import ImageClassifier

_HALF_PRECISION = (torch.float16, torch.bfloat16)

Views = Literal["flip", "flip_and_shift"]
"""An image and its mirror image; and also both shifted by a pixel up and left, down and right."""


def exact_logits(model: "ImageClassifier", images: Tensor) -> Tensor:
    """Classifies in float32 or float64, so that no result depends on the rest of a batch.

    In bfloat16, near ties are frequent and their order arbitrary; ``model.exact_evaluation`` says
    whether that is accepted. Half-precision weights, those of ``bf16-true``, are converted, as when
    a checkpoint is loaded. A single image is computed as two, as a CPU rounds products with a
    vector and with a matrix differently.
    """
    exact: bool | None = model.exact_evaluation
    if exact is None:  # float32 takes a GPU several times as long
        exact = not model.is_fitting or images.device.type != "cuda"
    if not exact:
        return cast(Tensor, model(images)).float()
    classify: Callable[[Tensor], Tensor] = model
    if next(model.network.parameters()).dtype in _HALF_PRECISION:
        weights = {
            name: value.float()
            for name, value in model.state_dict().items()
            if value.is_floating_point()
        }
        classify = partial(functional_call, model, weights)
    count = len(images)
    if count == 1:
        images = torch.cat([images, images])
    with torch.autocast(model.device.type, enabled=False), _without_tf32():
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


def evaluation_logits(model: "ImageClassifier", images: Tensor) -> Tensor:
    """Returns exact logits, averaged over the model's views of each image."""
    return mean_logits(partial(exact_logits, model), images, model.test_time_augmentation)


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


class ProbabilityNetwork(nn.Module):
    """A copy of a model for export: from pixels to probabilities, in float32 on the CPU."""

    def __init__(self, model: "ImageClassifier") -> None:
        super().__init__()
        self.network = (
            deepcopy(model.network).cpu().float().to(memory_format=torch.contiguous_format)
        )
        for module in filter(is_parametrized, [*self.network.modules()]):  # such as LoRA's
            _merge_parametrizations(module)
        self._probabilities = model.probabilities
        self._views = model.test_time_augmentation
        statistics = Normalization(model.preprocessing)
        self.mean = nn.Buffer(statistics.mean)
        self.std = nn.Buffer(statistics.std)

    def forward(self, images: Tensor) -> Tensor:
        """Normalises and classifies images (N, channels, crop, crop), as the preprocessing says."""
        probabilities: Tensor = self._probabilities(
            mean_logits(self._classify, images, self._views)
        )
        return probabilities

    def _classify(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) / self.std)
        return logits


def _merge_parametrizations(module: Any) -> None:
    """Replaces a parametrization by its weights, without changing the shared class."""
    weights = {name: nn.Parameter(getattr(module, name)) for name in module.parametrizations}
    module.__class__ = type_before_parametrizations(module)
    del module.parametrizations
    for name, weight in weights.items():
        setattr(module, name, weight)
