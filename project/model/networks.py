"""Networks by name: torchvision's, timm's, our own small ones and any callable."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, cast

import torch
import torchvision
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing, allow_module
from torch import nn
from torchvision.models import get_model, list_models  # type: ignore[attr-defined]
from torchvision.models.resnet import ResNet

from project.model.normalize import image_shape
from project.model.small_networks import ResNet9

TIMM = "timm/"
"""The prefix of the names of timm's networks."""

INCEPTIONS = ("googlenet", "inception_v3")
"""Torchvision's networks with auxiliary heads, which are left out; mean and std are 0.5."""

SMALL: dict[str, Callable[..., nn.Module]] = {
    "resnet9": partial(ResNet9, width=64),
    "resnet9_slim": partial(ResNet9, width=32),
}


def torchvision_names() -> list[str]:
    """Returns the names of torchvision's classification networks."""
    return list_models(module=torchvision.models)


def is_path(arch: str) -> bool:
    """Returns True for the dotted path of a callable."""
    return "." in arch and all(part.isidentifier() for part in arch.split("."))


def build_network(
    arch: str, num_classes: int, arch_args: Mapping[str, object] | None = None
) -> nn.Module:
    """Builds a network with new weights; see ``arch`` of ``project.model.ImageClassifier``."""
    args = {"num_classes": num_classes, **(arch_args or {})}
    make = find_builder(arch)
    problem = f"--model.arch_args: {arch} does not accept {args}"
    with _one_line_errors(problem):
        signature(make).bind(**args)
    with _one_line_errors(problem, is_own=is_path(arch)):
        return make(**args)


def build_for_images(
    arch: str, num_classes: int, arch_args: dict[str, object] | None, preprocessing: Preprocessing
) -> tuple[nn.Module, dict[str, object] | None]:
    """Builds a network for images of the crop's size; returns it and its ``arch_args``.

    These get timm's ``img_size`` if the network accepts no other size than its own, as most vision
    transformers do.
    """
    network = build_network(arch, num_classes, arch_args)
    _, *sides = image_shape(preprocessing)
    if "img_size" in (arch_args or {}) or _accepts(network, sides):
        return network, arch_args
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", (1,))[0]
    for side in sides:
        if side % patch:  # timm would leave out pixels at the edges
            below = side // patch * patch
            nearest = " or ".join(str(size) for size in (below, below + patch) if size)
            raise UserError(
                f"--data.image_size must be a multiple of {patch}, the size of {arch}'s patches,"
                f" such as {nearest}; got {side}"
            )
    arch_args = {**(arch_args or {}), "img_size": preprocessing["crop"]}
    return build_network(arch, num_classes, arch_args), arch_args


def _accepts(network: nn.Module, sides: Sequence[int]) -> bool:
    """Returns False for a timm network whose input size is fixed to another height and width."""
    about: Mapping[str, Any] = getattr(network, "pretrained_cfg", {})
    if not about.get("fixed_input_size") or list(about["input_size"][1:]) == list(sides):
        return True
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, first.in_channels, *sides))
    except Exception:  # libraries raise errors of any type
        return False
    return True


@contextmanager
def _one_line_errors(problem: str, is_own: bool = False) -> Iterator[None]:
    """Turns any error into one line, unless it is a bug in the user's own network."""
    try:
        yield
    except Exception as error:  # libraries raise errors of any type
        if is_own:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{problem} ({reason})") from error


def find_builder(arch: str) -> Callable[..., nn.Module]:
    """Returns the class or function that builds a network."""
    if arch in SMALL:
        return SMALL[arch]
    if arch in torchvision_names():
        return partial(_torchvision_network, arch)
    if arch.startswith(TIMM):
        return partial(_timm_network, timm_name(arch))
    if is_path(arch):
        path, _, name = arch.rpartition(".")
        try:
            module = import_module(path)
        except ModuleNotFoundError as error:
            raise UserError(f"--model.arch: {arch} cannot be imported ({error})") from error
        builder: Callable[..., nn.Module] | None = getattr(module, name, None)
        if builder is None:
            raise _unknown(arch, [f"{path}.{other}" for other in vars(module)])
        allow_module(path)  # checkpoints may name what is in it from then on
        return builder
    raise _unknown(arch)


def _torchvision_network(
    arch: str, num_classes: int, stem: str = "imagenet", **args: Any
) -> nn.Module:
    """Builds a network without reading weights, whatever ``arch_args`` say.

    With ``stem="cifar"``, a ResNet begins with a 3x3 convolution of stride 1 and no pool (He et
    al., 2016, section 4.2, https://arxiv.org/abs/1512.03385).
    """
    options = {"aux_logits": False, "init_weights": True} if arch in INCEPTIONS else {}
    network: nn.Module = get_model(arch, weights=None, num_classes=num_classes, **options, **args)
    if stem == "cifar" and isinstance(network, ResNet):
        channels = network.conv1.out_channels
        network.conv1 = nn.Conv2d(3, channels, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()  # type: ignore[assignment]  # any module will do
    elif stem != "imagenet":
        raise ValueError("only torchvision's ResNets have a stem, imagenet or cifar")
    return network


def _timm_network(name: str, **args: Any) -> nn.Module:
    """Builds a network without reading weights or configurations, whatever ``arch_args`` say."""
    import timm

    network: nn.Module = timm.create_model(
        name,
        pretrained=False,
        pretrained_cfg=None,
        pretrained_cfg_overlay=None,
        checkpoint_path=None,
        cache_dir=None,
        **args,
    )
    return network


def timm_name(arch: str) -> str:
    """Returns NAME of ``timm/NAME``, a timm network without the tag of pretrained weights."""
    import timm

    name, _, tag = arch.removeprefix(TIMM).partition(".")
    if not timm.is_model(name):  # neither is ``hf_hub:…``, which would be downloaded
        raise _unknown(arch)
    if tag:
        raise UserError(
            f"--model.arch {arch}: name the weights apart: {TIMM}{name} --model.weights {tag}"
        )
    return name


def _unknown(arch: str, own: Sequence[str] = ()) -> UserError:
    arch = arch[:100]  # a checkpoint could hold one that takes long to compare
    names = [*own, *SMALL, *torchvision_names()]
    with suppress(ImportError):
        import timm

        names += [TIMM + name for name in timm.list_models()]
    longer = [name for name in names if name.startswith((arch, TIMM + arch))]
    nearest = longer[:8] or get_close_matches(arch, names)
    advice = "name your own with its module, as in my_module.MyNet"
    if nearest:
        advice = f"did you mean {' or '.join(nearest)}?"
    return UserError(f"--model.arch: there is no network '{arch}'; {advice}")


def set_channels(network: nn.Module, channels: int) -> None:
    """Changes the first convolution from RGB to other channels; new weights keep its scale."""
    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels == 3 != channels:
        deviation = first.weight.std().item() * (3 / channels) ** 0.5
        shape = (first.out_channels, channels, *first.kernel_size)
        first.weight = nn.Parameter(deviation * torch.randn(shape))
        first.in_channels = channels


def head(network: nn.Module, num_classes: int) -> dict[str, nn.Module]:
    """Finds the head by name: the last linear or convolutional layer with an output for each class.

    timm's networks tell which layer it is; some have two.
    """
    layers = dict(network.named_modules())
    if hasattr(network, "get_classifier"):
        heads = cast(Any, network).get_classifier()
        heads = heads if isinstance(heads, tuple) else (heads,)
        return {name: layer for name, layer in layers.items() if layer in heads}
    for name, layer in reversed(layers.items()):
        if isinstance(layer, nn.Linear | nn.Conv2d) and len(layer.weight) == num_classes:
            return {name: layer}
    raise UserError(
        f"--model.arch: {type(network).__name__} has no linear or convolutional layer with"
        f" {num_classes} outputs, which would be its head"
    )


def prepare_network(
    network: nn.Module, arch: str, num_classes: int, preprocessing: Preprocessing
) -> str:
    """Gives a network its channels, tries it, and returns the name of the memory format that works.

    ``channels_last``, nearly always the faster one, comes first; code with ``view`` may only accept
    the other. Weights are converted to it and lazy layers initialised; nothing else changes.

    Raises:
        UserError: The network does not accept such images, or does not return logits.
    """
    channels, height, width = image_shape(preprocessing)
    set_channels(network, channels)
    network.eval()
    like = next(network.parameters(), torch.zeros(()))
    images = torch.zeros(2, channels, height, width, device=like.device, dtype=like.dtype)
    layout = torch.channels_last
    problem = (
        f"--model.arch: {arch} does not accept images of {preprocessing['crop']} pixels; choose another"
        " --data.image_size or --model.arch"
    )
    with torch.no_grad(), _one_line_errors(problem, is_own=is_path(arch)):
        try:
            logits = network(images.contiguous(memory_format=layout))
        except Exception:  # such as view() of a channels_last tensor
            layout = torch.contiguous_format
            logits = network(images.contiguous(memory_format=layout))
    network.train()
    shape = tuple(getattr(logits, "shape", ()))
    if shape != (2, num_classes):
        raise UserError(
            f"--model.arch: {arch} must return logits of shape (2, {num_classes}), got"
            f" {shape or type(logits).__name__}"
        )
    return set_memory_format(network, layout)


def set_memory_format(network: nn.Module, layout: torch.memory_format) -> str:
    """Converts a network's weights to a memory format; returns its name, which torch.save takes."""
    for parameter in network.parameters():  # not buffers, which may be taken by a view
        if parameter.ndim == 4:  # contiguous() would leave the strides of 1x1 kernels
            parameter.data = parameter.data.to(memory_format=layout)
    return str(layout).removeprefix("torch.")
