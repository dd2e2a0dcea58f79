"""Starting from weights that were trained elsewhere."""

import re
from collections.abc import Mapping

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

from project.engine.errors import UserError, listed
from project.engine.run.progress import note
from project.engine.training.fitting import require_finite
from project.model.networks import AUXILIARY_HEADS, head
from project.model.pretrained import find_weights

_WRAPPER = re.compile(r"^(module|_orig_mod|network)\.")  # of DistributedDataParallel, torch.compile and ours


def start_from(network: nn.Module, arch: str, weights: str, num_classes: int) -> None:
    """Copies pretrained weights into a network, and says which part of the head is new, if it is.

    Args:
        network: The network, as :func:`project.model.networks.build_network` makes it.
        arch: Its name.
        weights: As :func:`project.model.pretrained.find_weights` takes them.
        num_classes: How many classes the network tells apart.

    Raises:
        UserError: There are no such weights, they cannot be fetched or read, or anything but the head does not fit.
    """
    found = find_weights(arch, weights)
    left_out = load_weights(network, found.weights(), found.source, num_classes)
    if left_out:
        rank_zero_only(note)(
            f"starting from '{found.source}', but with a new head for {num_classes} classes ({', '.join(left_out)})"
        )


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str, num_classes: int) -> list[str]:
    """Copies weights into a network; a head for another number of classes is left out, and the new one starts from zero.

    Random weights that the features do not correct would stay in it (Kolesnikov et al., 2020, section 3.3,
    https://arxiv.org/abs/1912.11370).

    Args:
        network: The network, as :func:`project.model.networks.build_network` makes it.
        weights: By the network's own names, whatever wrappers put before them, as in ``module.``.
        source: Where they come from, for the error.
        num_classes: How many classes the network tells apart.

    Returns:
        The names of what was left out.

    Raises:
        UserError: Anything but the head does not fit, or is not finite; the text lists what.
    """
    own = network.state_dict()
    weights = _unwrapped(weights, own)
    heads = tuple(f"{name}." for name in head(network, num_classes))
    other_shape = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    left_out = [name for name in own if name.startswith(heads) and (name in other_shape or name not in weights)]
    # torchvision's older files do not count batches; BatchNorm does without
    needed = [name for name in own if name not in left_out and not name.endswith("num_batches_tracked")]
    problems = {
        "missing": [name for name in needed if name not in weights],
        "unknown": [name for name in weights if name not in own and not name.startswith(AUXILIARY_HEADS)],
        "of another shape": [name for name in other_shape if name not in left_out],
    }
    if any(problems.values()):
        parts = "; ".join(f"{what}: {listed(names, 5)}" for what, names in problems.items() if names)
        raise UserError(
            f"--model.weights: '{source}' does not fit this network ({parts}); see --model.arch and --model.arch_args"
        )
    fitting = {name: value for name, value in weights.items() if name in own and name not in left_out}
    require_finite(fitting, source)
    zeros = {name: torch.zeros_like(own[name]) for name in left_out}
    load_state(network, {**fitting, **zeros})
    return left_out


def load_state(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copies weights into a module; those that it does not have, or has besides, are passed over.

    Args:
        module: Any.
        weights: By its names. They count as saved by the module's present version, which some classes ask for and a
            plain dict does not tell.
    """
    state = module.state_dict()
    state.clear()
    state.update(weights)
    module.load_state_dict(state, strict=False)


def _unwrapped(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Takes away what wrappers put before the names, unless the network's own names begin so."""
    while not own.keys() & weights.keys() and any(map(_WRAPPER.match, weights)):
        weights = {_WRAPPER.sub("", name): value for name, value in weights.items()}
    return weights
