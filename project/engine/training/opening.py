"""The model that a checkpoint holds, built of what is imported here alone."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, nn

from ..errors import UserError, printable
from ..preprocessing import is_preprocessing
from ..run.checkpoint import ABOUT, About, read_checkpoint
from ..run.settings import imported_class, limited_by, network_of_file, plain_options

if TYPE_CHECKING:
    from .module import ClassifierModule

_OF_LOSS = "criterion."
_Model = TypeVar("_Model", bound="ClassifierModule")


def opened(
    cls: type[_Model], path: str | Path, strict: bool, arguments: dict[str, object]
) -> _Model:
    """Builds a checkpoint's model on the CPU: a ``cls``, or a subclass that is imported.

    ``arguments`` of the constructor replace those in the file.
    """
    checkpoint = read_checkpoint(path)
    model_class = _imported(cls, checkpoint[ABOUT], path)
    saved = plain_options(checkpoint.get("hyper_parameters") or {}, model_class)
    options = {
        name: value for name, value in saved.items() if name not in cls.not_saved
    } | arguments
    if not is_preprocessing(options.get("preprocessing")) or not isinstance(
        options.get("arch_args") or {}, dict
    ):
        raise UserError(f"'{path}' does not say how images are prepared or what its network is")
    if "arch" in options and "arch" not in arguments:
        unchecked = None if "arch_args" in arguments else options.get("arch_args")
        options["arch"] = network_of_file(str(options["arch"]), unchecked)
    weights = checkpoint["state_dict"]
    try:
        signature(model_class).bind(**options)  # a bug further in keeps its traceback
    except TypeError as error:
        raise UserError(
            f"'{path}': {model_class.__name__} does not accept its options: {error}"
        ) from error
    channels = len(options["preprocessing"]["mean"])
    with limited_by(weights, options.get("class_names", ()), options.get("arch_args"), channels):
        model = model_class(**options)
    state = model.state_dict()  # it knows the versions of its modules
    for name in [name for name in state if not name.startswith(_OF_LOSS)]:
        del state[name]
    state.update((n, value) for n, value in weights.items() if not n.startswith(_OF_LOSS))
    restore_weights(model, state, path, strict)
    model.thresholds = checkpoint[ABOUT].get("thresholds")
    return model


def restore_weights(
    model: nn.Module, weights: Mapping[str, Tensor], path: object, strict: bool = True
) -> None:
    """Loads weights into a model; the UserError says which do not fit it."""
    try:
        model.load_state_dict(weights, strict)
    except RuntimeError as error:
        problem = printable(" ".join(str(error).split()))
        raise UserError(f"'{path}' does not fit this model: {problem}") from error


def _imported(cls: type[_Model], about: About, path: object) -> type[_Model]:
    name = about.get("model")
    if name is None or name in [base.__name__ for base in cls.__mro__]:
        return cls
    model_class = imported_class(str(name), cls)
    if model_class is None:
        raise UserError(
            f"'{path}' holds a {printable(name)}, which is no {cls.__name__} that is imported here;"
            " give --import with the module that defines it, or in Python import it first"
        )
    return model_class
