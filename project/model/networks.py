"""Networks by name: torchvision's, timm's, our own small ones and any callable."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, cast

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import get_model, list_models  # type: ignore[attr-defined]  # not in its __all__
from torchvision.models.resnet import ResNet

from project.engine.errors import UserError, first_sentence, listed, printable
from project.engine.run.settings import allow_module, own_network
from project.model.small_networks import ResNet9

TIMM = "timm/"
"""The prefix of the names of timm's networks."""

INCEPTIONS = ("googlenet", "inception_v3")
"""Torchvision's networks with auxiliary heads, which are left out; their inputs have a mean and deviation of 0.5."""

_SMALL: dict[str, Callable[..., nn.Module]] = {
    "resnet9": partial(ResNet9, width=64),
    "resnet9_slim": partial(ResNet9, width=32),
}


def torchvision_names() -> list[str]:
    """Returns the names of torchvision's classification networks."""
    return list_models(module=torchvision.models)


def build_network(
    arch: str, num_classes: int, arch_args: Mapping[str, Any] | None = None
) -> nn.Module:
    """Builds a network with new weights; see ``arch`` and ``arch_args`` of :class:`project.model.ImageClassifier`."""
    make, args = find_builder(arch), dict(arch_args or {})
    try:
        if not is_path(arch):
            return make(num_classes=num_classes, **args)
        signature(make).bind(
            num_classes=num_classes, **args
        )  # a bug in the user's own code keeps its traceback
    except UserError:
        raise
    except Exception as error:  # libraries raise errors of any type for wrong arguments
        given = ", ".join(
            f"{name}={value!r}" for name, value in {"num_classes": num_classes, **args}.items()
        )
        complaint = f"{arch} does not accept {printable(given)} ({first_sentence(error)})"
        raise UserError(f"--model.arch_args: {complaint}") from error
    return make(num_classes=num_classes, **args)


def with_channels(network: nn.Module, channels: int) -> nn.Module:
    """Lets a first convolution of RGB take other channels, by new weights that keep the scale of its outputs."""
    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels == 3 != channels and first.weight.requires_grad:
        deviation = first.weight.std().item() * (3 / channels) ** 0.5
        first.weight = nn.Parameter(
            deviation * torch.randn(len(first.weight), channels, *first.kernel_size)
        )
        first.in_channels = channels
    return network


def is_path(arch: str) -> bool:
    """Tells the path of a callable from a name."""
    return "." in arch and all(part.isidentifier() for part in arch.split("."))


def network_of_file(arch: str, arch_args: Any) -> str:
    """Returns the name in a checkpoint if it is allowed: a known network, or one of a module that the user has named."""
    return own_network(arch, arch_args) if is_path(arch) else arch


def find_builder(arch: str) -> Callable[..., nn.Module]:
    """Finds a network's class or function, or names the nearest ones."""
    if arch in _SMALL:
        return _SMALL[arch]
    if arch.startswith(TIMM):
        create = import_timm().create_model
        defaults = [
            one.default
            for one in signature(create).parameters.values()
            if one.default is not one.empty
        ]
        return partial(
            create, timm_name(arch), *defaults
        )  # which arch_args can then not set, and so read no weights
    if arch in torchvision_names():
        return partial(_torchvision_network, arch)
    if not is_path(arch):
        raise _unknown(arch)
    module, _, name = arch.rpartition(".")
    try:
        make: Callable[..., nn.Module] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"--model.arch: {printable(arch)} cannot be imported ({first_sentence(error)})"
        ) from error
    allow_module(make.__module__ if isinstance(make, type) else module)
    return make


def _torchvision_network(
    arch: str, num_classes: int, stem: str = "imagenet", **args: Any
) -> nn.Module:
    """Builds a network without reading weights, which ``arch_args`` cannot change.

    With ``stem="cifar"``, a ResNet begins with a 3x3 convolution of stride 1 and no pool (He et al., 2016, section 4.2,
    https://arxiv.org/abs/1512.03385).
    """
    options = {"aux_logits": False, "init_weights": True} if arch in INCEPTIONS else {}
    network: nn.Module = get_model(arch, weights=None, num_classes=num_classes, **options, **args)
    if stem == "cifar" and isinstance(network, ResNet):
        network.conv1 = nn.Conv2d(
            3, network.conv1.out_channels, kernel_size=3, padding=1, bias=False
        )
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()  # type: ignore[assignment]  # any module will do
    elif stem != "imagenet":
        raise ValueError("only torchvision's ResNets have a stem, imagenet or cifar")
    return network


def import_timm() -> Any:
    """Imports timm, or names the package to install."""
    try:
        return import_module("timm")
    except ImportError as error:
        raise UserError(
            f"--model.arch {TIMM}NAME needs the package timm; install it by: pip install timm"
        ) from error


def timm_name(arch: str) -> str:
    """Returns NAME of ``timm/NAME``; raises an error if timm has no such network, or if it ends with a tag of weights."""
    name, _, tag = arch.removeprefix(TIMM).partition(".")
    if (
        name not in import_timm().list_models()
    ):  # nor may a name make timm look elsewhere, as ``hf_hub:`` does
        raise _unknown(arch)
    if tag:
        raise UserError(
            f"--model.arch {printable(arch)}: name the weights apart: {TIMM}{name} --model.weights {tag}"
        )
    return name


def _unknown(arch: str) -> UserError:
    arch = arch[:100]  # a checkpoint could hold one that takes long to compare
    names = [*_SMALL, *torchvision_names()]
    with suppress(UserError):  # timm may not be installed
        names += [TIMM + name for name in import_timm().list_models()]
    begun = [found for found in names if found.startswith((arch, TIMM + arch))]
    nearest = begun or get_close_matches(arch, names, n=3)
    own = "name your own with its module, as in my_module.MyNet"
    advice = f"did you mean {listed(nearest, 8, 'or')}?" if nearest else own
    return UserError(f"--model.arch: there is no network '{printable(arch)}'; {advice}")


def head(network: nn.Module, num_classes: int) -> dict[str, nn.Module]:
    """Finds the head by its name: the last linear or convolutional layer with ``num_classes`` outputs.

    timm's networks say which layer it is; some have two.
    """
    if hasattr(network, "get_classifier"):
        found = cast(Any, network).get_classifier()
        heads = found if isinstance(found, tuple) else (found,)
        return {name: layer for name, layer in network.named_modules() if layer in heads}
    layers = [
        (name, layer)
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    fitting = [(name, layer) for name, layer in layers if len(layer.weight) == num_classes]
    if not fitting:
        raise UserError(
            f"--model.arch: {type(network).__name__} has no linear or convolutional layer with {num_classes} outputs,"
            " which would be its head"
        )
    return dict(fitting[-1:])


def detect_memory_format(
    network: nn.Module, arch: str, num_classes: int, images: Tensor
) -> torch.memory_format:
    """Tries a network on two images, converts its weights to the memory format that works, and returns that.

    ``channels_last``, nearly always the faster one, comes first. Lazy layers get their shapes; nothing else changes.
    """
    modes = {module: module.training for module in network.modules()}
    network.eval()
    layout = torch.channels_last
    try:
        try:
            logits = _try(network, images, layout)
        except Exception:  # a view fails, for example
            layout = torch.contiguous_format
            logits = _try(network, images, layout)
    except Exception as error:
        if is_path(arch):  # a bug in the user's own network
            raise
        raise UserError(
            f"--model.arch: {printable(arch)} does not accept images of {images.shape[-1]} pixels ({first_sentence(error)});"
            " choose another --data.image_size or --model.arch"
        ) from error
    for module, mode in modes.items():
        module.training = mode
    if not isinstance(logits, Tensor) or logits.shape != (2, num_classes):
        got = (
            f"a shape of {tuple(logits.shape)}"
            if isinstance(logits, Tensor)
            else type(logits).__name__
        )
        raise UserError(
            f"--model.arch: {printable(arch)} must return logits of shape (2, {num_classes}), got {got}"
        )
    return layout


def _try(network: nn.Module, images: Tensor, layout: torch.memory_format) -> Any:
    device = next(network.parameters(), torch.empty(0)).device
    images = images.to(device, torch.get_default_dtype())
    with torch.no_grad():
        logits = network(images.contiguous(memory_format=layout))
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.to(
                memory_format=layout
            )  # contiguous leaves the strides of 1x1 kernels
    return logits
