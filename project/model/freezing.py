"""The blocks of any network in order of depth, and freezing the first of them."""

from collections.abc import Iterator
from itertools import chain
from os.path import commonprefix
from typing import Any, cast

from torch import nn

from project.engine import UserError
from project.model.networks import head

_BACKBONE = "backbone"


def freeze_layers(network: nn.Module, freeze: str, num_classes: int) -> None:
    """Freezes the ``backbone``, which is all but the head, or everything before a block."""
    if freeze == _BACKBONE:
        network.requires_grad_(False)
        for layer in head(network, num_classes).values():
            layer.requires_grad_(True)
    else:
        layers = blocks(network)
        number = _position(layers, freeze)
        if not number:
            names = [block_name(layers, later) for later in range(1, len(layers))]
            raise UserError(
                f"--model.freeze: no block after the first is called '{freeze}'; there are"
                f" {', '.join([*names, _BACKBONE])}"
            )
        for name in chain.from_iterable(layers[:number]):
            network.get_parameter(name).requires_grad_(False)
    evaluate_frozen(network, freeze, num_classes)


def evaluate_frozen(network: nn.Module, freeze: str, num_classes: int) -> None:
    """Puts frozen modules of a network in training mode into evaluation mode.

    BatchNorm then keeps its running statistics, and nothing is dropped out, by layers without
    parameters that come before the first trained one either.
    """
    if freeze == _BACKBONE:
        network.eval()
        for layer in head(network, num_classes).values():
            layer.train()
        return
    seen_trained = False
    for module in network.modules():
        trained = [parameter.requires_grad for parameter in module.parameters()]
        is_leaf = next(module.children(), None) is None
        seen_trained |= is_leaf and any(trained)
        if not any(trained) and (trained or (is_leaf and not seen_trained)):
            module.training = False


def blocks(network: nn.Module) -> list[list[str]]:
    """Lists the parameters of each block in order of depth, the stem first and the head last.

    Networks of timm name their blocks by ``group_matcher``. In others, sequences, lists and a
    module with more than half of all parameters are taken apart; anything else is a block.
    Normalisation and lone parameters belong to the block before.
    """
    if hasattr(network, "group_matcher"):
        from timm.models import group_parameters

        matcher = cast(Any, network).group_matcher(coarse=False)
        groups: dict[int, list[str]] = group_parameters(network, matcher)
        return [groups[depth] for depth in sorted(groups)]
    known = {name for name, _ in network.named_parameters()}  # shared ones have one name
    layers: list[list[str]] = [[]]
    has_layer = False
    for names, is_layer in _parts(network, "", _size(network) / 2):
        if is_layer and has_layer:
            layers.append([])
        layers[-1] += [name for name in names if name in known]
        has_layer |= is_layer
    return layers


def _parts(module: nn.Module, prefix: str, half: float) -> Iterator[tuple[list[str], bool]]:
    """Yields the parameters of each part; True if it has a layer that is no normalisation."""
    yield [f"{prefix}{name}" for name, _ in module.named_parameters(recurse=False)], False
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        is_apart = isinstance(child, nn.Sequential | nn.ModuleList) or _size(child) > half
        if is_apart and len(list(child.children())) > 0:
            yield from _parts(child, f"{path}.", half)
        else:
            parameters = dict(child.named_parameters(path))
            yield list(parameters), any(value.ndim > 1 for value in parameters.values())


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _position(layers: list[list[str]], name: str) -> int | None:
    for number, names in enumerate(layers):
        if any(f"{parameter}.".startswith(f"{name}.") for parameter in names):
            return number
    return None


def block_name(layers: list[list[str]], number: int) -> str:
    """Names a block by its module, or by its first parameter if an earlier block shares that."""
    paths = [name.split(".")[:-1] for name in layers[number]]
    module = ".".join(commonprefix(paths))  # noqa: RUF071
    return module if _position(layers, module) == number else layers[number][0]
