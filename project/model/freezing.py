"""The blocks of any network in order of depth, and freezing the first of them."""

from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from project.engine.errors import UserError, printable
from project.model.networks import head, import_timm


def blocks(network: nn.Module) -> list[list[str]]:
    """Lists a network's blocks in order of depth, the stem first and the head last.

    Networks of timm say by their ``group_matcher`` what their blocks are. In any other, sequences and lists of modules
    are taken apart, and so is a module that holds more than half of all parameters; what is not taken apart is a block.
    A normalisation layer, or a parameter that stands alone, belongs to the block before it.

    Args:
        network: Any that registers its modules in the order in which they compute.

    Returns:
        For each block, the names of its parameters; each parameter is in one block.
    """
    if hasattr(network, "group_matcher"):
        matcher = cast(Any, network).group_matcher(coarse=False)
        found: dict[int, list[str]] = import_timm().models.group_parameters(network, matcher)
        return [found[depth] for depth in sorted(found)]
    known = {name for name, _ in network.named_parameters()}  # one name for what two modules share
    listed: list[list[str]] = []
    first: list[str] = []
    for names, is_layer in _parts(network, "", _size(network) / 2):
        own = [name for name in names if name in known]
        if is_layer:
            listed.append(first + own)
            first = []
        else:
            (listed[-1] if listed else first).extend(own)
    return listed or [first]


class Freezing:
    """Which blocks of a network stay as they are: none, all but the head, or all before one.

    Args:
        num_classes: How many classes the network tells apart.
        backbone: Whether all but the head stays.
        until: The first block that is trained, or a layer that begins with it.

    Raises:
        UserError: Both are asked for.
    """

    def __init__(self, num_classes: int, backbone: bool, until: str | None) -> None:
        if backbone and until is not None:
            raise UserError("--model.freeze_backbone freezes all but the head; leave it or --model.freeze_until out")
        self._num_classes, self._backbone, self._until = num_classes, backbone, until

    def freeze(self, network: nn.Module) -> None:
        """Keeps the parameters of the blocks from being trained.

        Args:
            network: Any; afterwards it is in training mode, as far as it is trained.

        Raises:
            UserError: No block has that name, or none is before it.
        """
        if self._backbone:
            network.requires_grad_(False)
            for layer in head(network, self._num_classes).values():
                layer.requires_grad_(True)
        elif self._until is not None:
            for name in _before(network, self._until):
                network.get_parameter(name).requires_grad_(False)
        else:
            return
        self.evaluate(network.train())

    def evaluate(self, network: nn.Module) -> None:
        """Puts what is frozen into evaluation mode, so that BatchNorm keeps its running statistics and nothing is dropped out.

        Layers without parameters are frozen if they come before the first that is trained.

        Args:
            network: In training mode.
        """
        if self._backbone:
            network.eval()
            for layer in head(network, self._num_classes).values():
                layer.train()
        elif self._until is not None:
            leaves = [module for module in network.modules() if not any(True for _ in module.children())]
            first = next(number for number, leaf in enumerate(leaves) if any(map(_is_trained, leaf.parameters())))
            for module in network.modules():
                parameters = list(module.parameters())
                if parameters and not any(map(_is_trained, parameters)):
                    module.eval()
            for leaf in leaves[:first]:  # such as Dropout, which has no parameters by which it could be told
                leaf.eval()


def _is_trained(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _before(network: nn.Module, until: str) -> list[str]:
    """The parameters of the blocks before the one with that name."""
    listed = blocks(network)
    begun = [any(f"{name}.".startswith(f"{until}.") for name in names) for names in listed]
    if True not in begun[1:]:
        choice = ", ".join(dict.fromkeys(map(_name, listed[1:])))
        raise UserError(
            f"--model.freeze_until: no block after the first is called '{printable(until)}'; there are {choice}"
        )
    return [name for names in listed[: begun.index(True)] for name in names]


def _parts(module: nn.Module, name: str, half: float) -> Iterator[tuple[list[str], bool]]:
    """The parameters of what is not taken apart, and whether it has a layer that is no normalisation."""
    alone = [f"{name}{own}" for own, _ in module.named_parameters(recurse=False)]
    if alone:
        yield alone, False
    for child_name, child in module.named_children():
        path = f"{name}{child_name}"
        is_apart = isinstance(child, nn.Sequential | nn.ModuleList) or _size(child) > half
        if is_apart and any(True for _ in child.children()):
            yield from _parts(child, f"{path}.", half)
        elif parameters := dict(child.named_parameters(path)):
            yield list(parameters), any(parameter.ndim > 1 for parameter in parameters.values())


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _name(names: list[str]) -> str:
    """The deepest module that holds all of a block, or its first layer where that is the network itself."""
    paths = [name.split(".")[:-1] for name in names]
    shared = [parts[0] for parts in zip(*paths, strict=False) if len(set(parts)) == 1]
    return ".".join(shared or paths[0])
