"""Freezing: the blocks of any network in order of depth, and which of them are trained."""

from collections.abc import Iterator
from itertools import chain
from os.path import commonprefix
from typing import Any, cast

from lightkeeper.exact import UserError
from torch import nn

from project.model.networks import head

_BACKBONE = "backbone"


def freeze_layers(network: nn.Module, freeze: str, num_classes: int) -> None:
    """Freezes the ``backbone``, which is all but the head, or everything before a block."""
    if freeze == _BACKBONE:
        network.requires_grad_(False)
        for layer in head(network, num_classes).values():
            layer.requires_grad_(True)
    else:
        all_blocks = blocks(network)
        index = _block_index(all_blocks, freeze)
        if not index:
            names = [block_name(all_blocks, later) for later in range(1, len(all_blocks))]
            raise UserError(
                f"--model.freeze: no block after the first is called '{freeze}'; there are"
                f" {', '.join([*names, _BACKBONE])}"
            )
        for name in chain.from_iterable(all_blocks[:index]):
            network.get_parameter(name).requires_grad_(False)
    set_frozen_to_eval(network, freeze, num_classes)


def set_frozen_to_eval(network: nn.Module, freeze: str, num_classes: int) -> None:
    """Puts frozen modules of a network in training mode into evaluation mode.

    BatchNorm then keeps its running statistics. Modules without parameters, such as dropout, are
    frozen if they come before the first trained layer.
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
    module with more than half of all parameters are taken apart; any other module is a block.
    Normalisation layers and single parameters belong to the block before them.
    """
    if hasattr(network, "group_matcher"):
        from timm.models import group_parameters

        matcher = cast(Any, network).group_matcher(coarse=False)
        groups: dict[int, list[str]] = group_parameters(network, matcher)
        return [groups[depth] for depth in sorted(groups)]
    unique = {name for name, _ in network.named_parameters()}  # a shared parameter has one name
    result: list[list[str]] = [[]]
    has_layer = False
    for names, is_layer in _parts(network, "", _parameter_count(network) / 2):
        if is_layer and has_layer:
            result.append([])
        result[-1] += [name for name in names if name in unique]
        has_layer |= is_layer
    return result


def _parts(module: nn.Module, prefix: str, half: float) -> Iterator[tuple[list[str], bool]]:
    """Yields the names of each part's parameters, and whether it is a layer, with a matrix."""
    yield [f"{prefix}{name}" for name, _ in module.named_parameters(recurse=False)], False
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        is_container = (
            isinstance(child, nn.Sequential | nn.ModuleList) or _parameter_count(child) > half
        )
        if is_container and len(list(child.children())) > 0:
            yield from _parts(child, f"{path}.", half)
        else:
            parameters = dict(child.named_parameters(path))
            yield list(parameters), any(value.ndim > 1 for value in parameters.values())


def _parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _block_index(all_blocks: list[list[str]], module: str) -> int | None:
    """Returns the index of the first block with a parameter of a module; None without any."""
    has_parameter = (
        any(f"{name}.".startswith(f"{module}.") for name in names) for names in all_blocks
    )
    return next((index for index, has in enumerate(has_parameter) if has), None)


def block_name(all_blocks: list[list[str]], index: int) -> str:
    """Names a block by its module, or by its first parameter if an earlier block shares that."""
    paths = [name.split(".")[:-1] for name in all_blocks[index]]
    module = ".".join(commonprefix(paths))  # noqa: RUF071  # of lists, not of characters
    return module if _block_index(all_blocks, module) == index else all_blocks[index][0]
