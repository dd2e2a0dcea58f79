"""Networks by name: torchvision's, timm's, our own small ones and any callable; nothing else knows a layer's name."""

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, cast

import torchvision
from torch import Tensor, nn
from torchvision.models import get_model, list_models  # type: ignore[attr-defined]  # not in its __all__
from torchvision.models.resnet import ResNet

from project.engine.errors import UserError, first_sentence, listed, printable, require
from project.engine.run.settings import imported_class
from project.model.nets.airbench import Airbench
from project.model.nets.resnet9 import ResNet9

TIMM = "timm/"
"""What stands before the name of a network of timm."""

AUXILIARY_HEADS = ("aux1.", "aux2.", "AuxLogits.")
"""What the weights of GoogLeNet and Inception have besides; both are built without."""

_SHOWN = 8  # of the networks that may have been meant
_SMALL: dict[str, Callable[..., nn.Module]] = {
    "airbench": Airbench,
    "resnet9": partial(ResNet9, width=64),
    "resnet9_slim": partial(ResNet9, width=32),
}
INCEPTIONS = ("googlenet", "inception_v3")
"""Those whose weights torchvision took from elsewhere, where mean and deviation of the input were 0.5."""

_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)\.")
_WITHOUT_AUXILIARY_HEADS = {"aux_logits": False, "init_weights": True}


def torchvision_names() -> list[str]:
    """The names of torchvision's classification networks."""
    return list_models(module=torchvision.models)


def network_names() -> list[str]:
    """The names of our own networks and of torchvision's."""
    return [*_SMALL, *torchvision_names()]


def build_network(arch: str, num_classes: int, arch_args: Mapping[str, Any] | None = None) -> nn.Module:
    """Builds a network with fresh weights, in evaluation or training mode as it comes.

    Args:
        arch: A classification network of torchvision by name, or of timm as ``timm/NAME``; ``airbench``,
            ``resnet9`` and, half as wide, ``resnet9_slim``, which are ours; or the dotted path of a callable that takes
            ``num_classes`` and returns a module.
        num_classes: The width of the head.
        arch_args: Further arguments of what builds the network, such as ``stochastic_depth_prob`` of some of
            torchvision's or ``drop_path_rate`` of timm's. torchvision's ResNets also take ``stem``: ``cifar`` is one 3x3
            convolution of stride 1 and no pool (He et al., 2016, section 4.2, https://arxiv.org/abs/1512.03385), for
            images of about 32 pixels.

    Raises:
        UserError: No network has that name, it cannot be built, or it has no such argument.
    """
    require_known(arch)
    args = dict(arch_args or {})
    stem = args.pop("stem", "imagenet") if arch in torchvision_names() else "imagenet"
    require(stem in ("imagenet", "cifar"), "--model.arch_args.stem", stem, "imagenet or cifar")
    try:
        network = _build(arch, num_classes, args)
    except UserError:
        raise
    except Exception as error:  # a network may find fault with its arguments in any way
        if not args:
            raise
        raise UserError(f"--model.arch_args: {arch} does not take {_shown(args)} ({first_sentence(error)})") from error
    if stem == "cifar":
        _replace_stem(network, arch)
    return network


def _build(arch: str, num_classes: int, args: Mapping[str, Any]) -> nn.Module:
    """Passes on what the project decides by name, so that no argument can decide it, or have weights read."""
    if arch in _SMALL:
        return _SMALL[arch](num_classes=num_classes, **args)
    if arch.startswith(TIMM):
        return _timm_network(arch, num_classes, args)
    if arch in network_names():
        options = _WITHOUT_AUXILIARY_HEADS if arch in INCEPTIONS else {}
        return get_model(arch, weights=None, num_classes=num_classes, **options, **args)
    return _call(arch, num_classes, args)


def require_known(arch: str) -> None:
    """Refuses a name that is neither a network's nor a path.

    Raises:
        UserError: It is none; the text names the nearest.
    """
    if not (arch in network_names() or arch.startswith(TIMM) or "." in arch):
        raise UserError(f"--model.arch: there is no network '{printable(arch)}'; did you mean {_nearest(arch)}?")


def _replace_stem(network: nn.Module, arch: str) -> None:
    if not isinstance(network, ResNet):
        raise UserError(
            f"--model.arch_args.stem cifar replaces the first layers of torchvision's ResNets, and {arch} is none; leave it out, or"
            " choose another --model.arch, such as resnet18"
        )
    network.conv1 = nn.Conv2d(3, network.conv1.out_channels, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()  # type: ignore[assignment]  # any module will do


def import_timm() -> Any:
    """Imports timm.

    Raises:
        UserError: It is not installed.
    """
    try:
        return import_module("timm")
    except ImportError as error:
        raise UserError(f"--model.arch {TIMM}NAME needs the package timm; install it by: pip install timm") from error


def timm_name(arch: str) -> str:
    """The name that timm has for a network.

    Args:
        arch: ``timm/NAME``.

    Raises:
        UserError: timm is not installed, has no such network, or the name has a tag of weights.
    """
    timm, name = import_timm(), arch.removeprefix(TIMM)
    known, (bare, _, tag) = timm.list_models(), name.partition(".")
    if bare not in known:  # nor may a name make timm look elsewhere, as ``hf_hub:`` does
        nearest = listed((TIMM + found for found in _close(bare, known)), _SHOWN, "or")
        raise UserError(f"--model.arch: timm has no network '{printable(name)}'; did you mean {nearest}?")
    if tag:
        raise UserError(f"--model.arch {printable(arch)}: name the weights apart: {TIMM}{bare} --model.weights {tag}")
    return name


def _timm_network(arch: str, num_classes: int, args: Mapping[str, Any]) -> nn.Module:
    create = import_timm().create_model
    own = {
        name: known.default for name, known in signature(create).parameters.items() if known.default is not known.empty
    }
    network: nn.Module = create(timm_name(arch), **own, num_classes=num_classes, **args)
    return network


def imported_arch(arch: str, arch_args: Any = None) -> str:
    """Finds the network that a checkpoint names without importing anything for it.

    Args:
        arch: As :func:`build_network` takes it.
        arch_args: What the checkpoint holds of that, unchecked.

    Returns:
        The name; of a callable, the path at which it is imported.

    Raises:
        UserError: It is a callable that is not imported, or a function, of which there are some that write to the place
            that a text names, with a text among its arguments.
    """
    if "." not in arch or arch.startswith(TIMM):
        return arch
    path, _, name = arch.rpartition(".")
    known = vars(sys.modules.get(path, object))
    if name in known:
        is_network = isinstance(known[name], type) and issubclass(known[name], nn.Module)
        if not is_network and _holds_text(arch_args):
            raise UserError(
                f"the checkpoint's network is the function {printable(arch)} with a text among its arguments, which only a"
                " class may be given by a file; in Python, load_from_checkpoint takes arch_args from you"
            )
        return arch
    found = imported_class(arch, nn.Module)
    if found is None:
        raise UserError(
            f"the checkpoint's network is {printable(arch)}, which is not imported here; give --import"
            f" {printable(path)}, or in Python import it first"
        )
    return f"{found.__module__}.{found.__qualname__}"


def _holds_text(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, str) or any(map(_holds_text, parts))


def _call(arch: str, num_classes: int, args: Mapping[str, Any]) -> nn.Module:
    path, _, name = arch.rpartition(".")
    shown = printable(arch)
    try:
        make: Callable[..., Any] = getattr(import_module(path), name)
        named = "num_classes" in signature(make).parameters
    except Exception as error:  # importing runs the user's code
        raise UserError(f"--model.arch: '{shown}' cannot be imported ({first_sentence(error)})") from error
    if not named:
        raise UserError(f"--model.arch: '{shown}' must have a parameter num_classes, which is the width of the head")
    try:
        network = make(num_classes=num_classes, **args)
    except Exception as error:
        given = _shown({"num_classes": num_classes, **args})
        raise UserError(
            f"--model.arch: '{shown}' fails with {given} ({type(error).__name__}: {first_sentence(error)})"
        ) from error
    if not isinstance(network, nn.Module):
        raise UserError(f"--model.arch: '{shown}' must return a torch.nn.Module, got {type(network).__name__}")
    return network


def head(network: nn.Module, num_classes: int) -> dict[str, nn.Module]:
    """Finds the head: what is new where classes are new, and trained where the backbone is frozen.

    Args:
        network: Any.
        num_classes: How many classes it tells apart.

    Returns:
        By its name, what timm says where the network is timm's, otherwise the last linear or convolutional layer with
        so many outputs. A few networks of timm have two heads.

    Raises:
        UserError: There is none.
    """
    if hasattr(network, "get_classifier"):
        found = cast(Any, network).get_classifier()
        layers = found if isinstance(found, tuple) else (found,)
        return {name: module for name, module in network.named_modules() if any(module is layer for layer in layers)}
    fitting = [(name, module) for name, module in network.named_modules() if _outputs(module) == num_classes]
    if not fitting:
        raise UserError(
            f"--model.arch: {type(network).__name__} has no linear or convolutional layer with {num_classes} outputs,"
            " which would be its head"
        )
    return dict(fitting[-1:])


def _outputs(layer: nn.Module) -> int | None:
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, nn.Conv2d) else None


def current_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names that torchvision gives to weights today; its files of DenseNets still have those of its first release."""
    return {_OLD_DENSENET.sub(r"\1\2.", name): value for name, value in weights.items()}


def first_convolution(network: nn.Module) -> nn.Conv2d | None:
    """The first convolution that sees the image, if there is one."""
    return next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)


def _shown(args: Mapping[str, Any]) -> str:
    return printable(", ".join(f"{name}={value!r}" for name, value in args.items()))


def _nearest(arch: str) -> str:
    names = network_names()
    found = _close(arch, names)
    if arch not in found:
        with suppress(UserError):  # it may not be installed
            found = [TIMM + arch] * (arch in import_timm().list_models()) or found
    return listed(found or names, _SHOWN, "or")


def _close(name: str, names: list[str]) -> list[str]:
    return [found for found in names if name and found.startswith(name)] or get_close_matches(name, names, n=3)
