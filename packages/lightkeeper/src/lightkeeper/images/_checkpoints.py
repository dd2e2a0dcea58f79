"""What a checkpoint says about itself, and the model and the data of one."""

import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from ..exact._checkpoint_io import Checkpoint
from ..exact._errors import UserError, listed, note, printable
from ..exact._plain import inside
from ._best_checkpoint import best_checkpoint
from ._checkpoint import ABOUT, About, damaged, read_checkpoint, read_hparams
from ._class_names import require_class_names
from ._preprocessing import is_preprocessing
from ._settings import (
    imported_class,
    limited_by,
    network_of_file,
    parameters_of,
    plain_options,
    remembered,
    require_arguments,
    subclasses,
)
from ._splits import SPLITS

_OF_LOSS = "criterion."
_DECISIVE = ("torch", "torchvision", "lightning", "torchmetrics")
"""Packages whose version decides what a checkpoint's numbers are."""
_Model = TypeVar("_Model", bound=LightningModule)


def change_of_data(about: About, data: object) -> str:
    """Describes how data differs from a checkpoint's; empty if it does not, or is not ours."""
    digests = _facts(data, "digests")  # which loads it
    sizes = _facts(data, "split_sizes")
    if (before := about.get("images", sizes)) != sizes:
        return f"from {before} images to {sizes}"
    known = about.get("digests", digests)  # not of a checkpoint of before
    others = [split for split, digest in digests.items() if digest != known.get(split)]
    return f"in names, labels or lengths of files of {listed(others)}" if others else ""


def note_change(about: About, data: object) -> bool:
    """Notes that data which was opened by a checkpoint differs from it, and returns True if so."""
    if change := change_of_data(about, data):
        note(
            f"the data has changed since the checkpoint was trained, {change}; images that it was"
            " trained on may be in other splits"
        )
    return bool(change)


def _facts(data: object, name: str) -> dict[str, object]:
    """Calls a data module's method, such as ``digests``; {} for a module that lacks it."""
    return dict(getattr(data, name, dict)())


def measured(trainer: Trainer, model: object) -> dict[str, dict[str, object]]:
    """Returns the newest metrics of ``val`` and ``test``: what the model logs, and its ``results``.

    A model whose steps only log has no results, such as one that is trained without labels.
    """
    logged: dict[str, dict[str, object]] = {}
    for name, value in trainer.callback_metrics.items():
        split, _, rest = name.partition("/")
        if split in ("val", "test"):
            logged.setdefault(split, {})[rest] = value.item()
    for split, results in getattr(model, "results", {}).items():
        logged[split] = logged.get(split, {}) | results
    return logged


def describe_run(trainer: Trainer, model: Any, metrics: Mapping[str, object]) -> About:
    """Collects the facts of a checkpoint about itself, as plain data.

    ``thresholds`` are by class, if an image may have several. ``data`` names a class without a
    module to import. ``images`` counts splits, ``digests`` are of their names and labels.
    ``selection`` says how ``best.ckpt`` is chosen.
    """
    data = getattr(trainer, "datamodule", None)
    options = remembered(data.hparams)[0] if data else {}
    best = best_checkpoint(trainer)
    # afterwards Lightning counts on
    training = trainer.state.fn == "fit" and not trainer.state.finished
    return About(
        model=type(model).__name__,
        class_names=model.class_names,
        preprocessing=model.preprocessing,
        thresholds=getattr(model, "thresholds", None),
        arch=model.arch,
        arch_args=remembered(model.arch_args or {})[0],
        data={"class_path": type(data).__name__, "init_args": options} if data else None,
        images=_facts(data, "split_sizes"),
        digests=_facts(data, "digests"),
        processes=trainer.world_size,
        transforms=getattr(data, "transforms_in_words", dict)(),
        split_seed=getattr(data, "split_seed", None),
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in _DECISIVE},
        },
        epoch=trainer.current_epoch if training else max(trainer.current_epoch - 1, 0),
        step=trainer.global_step,
        selection={"monitor": str(best.monitor), "mode": best.mode}
        if best and best.best_model_path  # not where training had no validation
        else None,
        metrics={**metrics},
    )


def load_model(
    cls: type[_Model],
    checkpoint_path: str | Path,
    map_location: torch.device | str | int | Callable[..., Any] | dict[str, str] | None = None,
    hparams_file: str | Path | None = None,
    strict: bool | None = None,
    **kwargs: Any,
) -> _Model:
    """Builds the model that a checkpoint holds, and imports or runs nothing that the file says.

    As Lightning's, it calls ``configure_model`` and ``on_load_checkpoint`` before it loads the
    weights.

    Args:
        cls: The class of the model. If the checkpoint is of a subclass that is imported, the model
            is of that. Arguments of the constructor that it lists as ``not_saved`` are never taken
            from a file.
        checkpoint_path: The checkpoint.
        map_location: The device for the model, by default the CPU. Weights are read onto it, so that
            a function or a dict, which say where those of another device go, leave them there.
        hparams_file: A YAML or CSV file of hyperparameters in place of those in the checkpoint.
        strict: If true, the weights must be exactly those of the model; those of a loss need not
            be. By default the model's ``strict_loading``.
        kwargs: Arguments of the constructor in place of those in the file.

    Raises:
        UserError: The file is missing or damaged, or does not hold such a model.
    """
    checkpoint = read_checkpoint(checkpoint_path)
    if hparams_file is not None:
        checkpoint["hyper_parameters"] = read_hparams(hparams_file)
    model_class = _imported(cls, checkpoint[ABOUT], checkpoint_path)
    source = checkpoint_path if hparams_file is None else hparams_file
    options = _options_of(model_class, checkpoint, source, kwargs) | kwargs
    with limited_by(checkpoint["state_dict"], options):
        model = model_class(**options)
        model.configure_model()
    require_class_names(getattr(model, "class_names", []))
    model.on_load_checkpoint(checkpoint)
    weights = checkpoint["state_dict"]  # the hook may change them
    state = model.state_dict()  # it knows the versions of its modules
    for name in [name for name in state if not name.startswith(_OF_LOSS)]:
        del state[name]
    state.update((n, value) for n, value in weights.items() if not n.startswith(_OF_LOSS))
    with fitting(checkpoint_path, type(model)):
        model.load_state_dict(state, model.strict_loading if strict is None else strict)
    return model.to(map_location if isinstance(map_location, torch.device | str | int) else "cpu")


def _options_of(
    model_class: type[_Model],
    checkpoint: Checkpoint,
    path: str | Path,
    arguments: dict[str, object],
) -> dict[str, object]:
    """Returns the arguments of the constructor that the file may decide."""
    not_saved = {*getattr(model_class, "not_saved", ()), *arguments}
    saved = {
        name: value
        for name, value in checkpoint.get("hyper_parameters", {}).items()
        if name not in not_saved
    }
    with damaged(f"'{path}'"), inside("hyper_parameters"):
        options = plain_options(saved, model_class)
    left_out = parameters_of(model_class).keys() - options.keys()
    if chosen := [name for name in saved if name in left_out]:
        note(
            f"'{path}' may not choose the class or function for {listed(chosen)}, which has its"
            " default; in Python, load_from_checkpoint takes yours"
        )
    given = options | arguments
    if not is_preprocessing(given.get("preprocessing")):
        raise UserError(f"'{path}' does not say how images are prepared")
    if "arch" in options:
        unchecked = None if "arch_args" in arguments else options.get("arch_args")
        options["arch"] = network_of_file(str(options["arch"]), unchecked)
    require_arguments(model_class, given)
    return options


@contextmanager
def fitting(path: object, model_class: type) -> Iterator[None]:
    """Says which weights of a file do not fit the model that they are loaded into."""
    try:
        yield
    except RuntimeError as error:
        begin = f"Error(s) in loading state_dict for {model_class.__name__}:"
        if path is None or not str(error).startswith(begin):  # of one's own code
            raise
        problem = printable(" ".join(str(error).split()))
        raise UserError(f"'{path}' does not fit this model: {problem}") from error


def _imported(cls: type[_Model], about: About, path: object) -> type[_Model]:
    name = about.get("model")
    if name is None or name in [base.__name__ for base in cls.__mro__]:
        return cls
    model_class = imported_class(str(name), cls)
    if model_class is None:
        raise UserError(
            f"'{path}' holds a model of the class {printable(name)}, which is no {cls.__name__}"
            " that is imported here; give --import with its module, besides others as in a,b, or in"
            " Python import it first"
        )
    return model_class


def remembered_data(about: About, base: type) -> tuple[type[Any], dict[str, Any]]:
    """Finds the data module that a checkpoint was trained with, and options for any machine.

    It is an imported subclass of ``base``.
    """
    data = about["data"]
    if data is None:
        raise UserError(
            "the checkpoint does not say what data it was trained on; name it with --data"
        )
    name = printable(data["class_path"])
    data_class = imported_class(name, base)
    if data_class is None:
        raise UserError(
            f"the checkpoint was trained on {name}, which is no data module that is imported here;"
            " give --import with the module that defines it, or in Python import it first"
        )
    with damaged("the checkpoint"), inside("about", "data", "init_args"):
        options = plain_options(data["init_args"], data_class)
    for name in ("cache", "num_workers", "prefetch_factor"):
        # a file decides neither what is written nor how many processes start
        options.pop(name, None)
    return data_class, options


def opened_data(
    base: type,
    checkpoint: Checkpoint,
    hparams_file: str | Path | None,
    arguments: dict[str, Any],
) -> Any:
    """Builds the data module that a checkpoint was trained with, from imported classes."""
    about = checkpoint[ABOUT]
    if hparams_file is not None and about["data"] is not None:
        about["data"]["init_args"] = read_hparams(hparams_file)
    data_class, options = remembered_data(about, base)
    require_datasets(about, arguments)
    require_arguments(data_class, options | arguments)
    data = data_class(**options | arguments)
    if "root" not in arguments:
        require_there(data, options)
    restore_data(data, checkpoint)
    return data


def states_of_data(checkpoint: Checkpoint, base: type) -> dict[str, Any]:
    """Returns the states that data modules have saved in a checkpoint, by the names of classes."""
    names = {cls.__qualname__ for cls in subclasses(base)}
    return {name: checkpoint[name] for name in names & checkpoint.keys()}


def restore_data(data: LightningDataModule, states: Mapping[str, Any]) -> None:
    """Gives a data module the state that one of its class has saved, as Lightning does."""
    if (name := type(data).__qualname__) in states:
        data.load_state_dict(states[name])


def require_datasets(about: About, given: Collection[str]) -> None:
    """Requires the datasets that a checkpoint was trained with, if these were classes or functions.

    A checkpoint chooses nothing that is imported. Without them, the split would be cut from the
    training images.
    """
    options = about["data"]["init_args"] if about["data"] is not None else {}
    for split in SPLITS:
        if split not in given and isinstance(name := options.get(split), str):
            raise UserError(
                f"the checkpoint was trained with the dataset {printable(name)}, but may not choose"
                " what is imported; name it, with its options",
                split,
            )


def require_there(data: LightningDataModule, options: Mapping[str, object]) -> None:
    """Refuses to download to a folder that only a checkpoint names, except to the default."""
    root = options.get("root")
    folder = getattr(data, "images_root", None)
    if root is None or root != data.hparams.get("root") or folder is None or os.path.isdir(folder):
        return
    if root != signature(type(data)).parameters["root"].default:
        raise UserError(
            f"the checkpoint was trained on the images in '{folder}', which are not there; say"
            " where they are, or shall be",
            "root",
        )
