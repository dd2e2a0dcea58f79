"""The model that a checkpoint holds, built of what is imported here alone."""

from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import UserError, printable
from ..preprocessing import is_preprocessing
from ..run.checkpoint import ABOUT, About, read_checkpoint
from ..run.settings import imported_class, limited_by, network_of_file, plain_options
from .fitting import require_fitting_weights


def opened(cls: type[Any], path: str | Path, strict: bool, given: dict[str, Any]) -> Any:
    """Builds a checkpoint's model on the CPU: a ``cls``, or a subclass that is imported; see its ``load_from_checkpoint``.

    ``given`` are arguments of the constructor in place of those in the file.
    """
    checkpoint = read_checkpoint(path)
    found = _imported(cls, checkpoint[ABOUT], path)
    said = plain_options(checkpoint.get("hyper_parameters"), found)
    options = {name: value for name, value in said.items() if name not in cls.not_saved} | given
    if not is_preprocessing(options.get("preprocessing")) or not isinstance(
        options.get("arch_args") or {}, dict
    ):
        raise UserError(f"'{path}' does not say how images are prepared or what its network is")
    if "arch" in options and "arch" not in given:
        unchecked = None if "arch_args" in given else options.get("arch_args")
        options["arch"] = network_of_file(str(options["arch"]), unchecked)
    weights = _without_loss(checkpoint["state_dict"])
    try:
        signature(found).bind(**options)  # a bug further in keeps its traceback
    except TypeError as error:
        raise UserError(
            f"'{path}': {found.__name__} does not accept its options: {error}"
        ) from error
    channels = len(options["preprocessing"]["mean"])
    with limited_by(weights, options.get("class_names", ()), options.get("arch_args"), channels):
        model = found(**options)
    if strict:
        require_fitting_weights(_without_loss(model.state_dict()), weights, path)
    state = (
        model.state_dict()
    )  # whose metadata counts weights as saved by the present version of their module
    state.clear()
    state.update(weights)
    model.load_state_dict(state, strict=False)
    model.thresholds = checkpoint[ABOUT].get("thresholds")
    return model


def _imported(cls: type[Any], about: About, path: str | Path) -> type[Any]:
    name = about.get("model")
    if name is None or name in [base.__name__ for base in cls.__mro__]:
        return cls
    found = imported_class(str(name), cls)
    if found is None:
        raise UserError(
            f"'{path}' holds a {printable(name)}, which is no {cls.__name__} that is imported here; give --import with"
            " the module that defines it, or in Python import it first"
        )
    return found


def _without_loss(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leaves out the weights of a loss, which only training needs."""
    return {name: value for name, value in weights.items() if not name.startswith("criterion.")}
