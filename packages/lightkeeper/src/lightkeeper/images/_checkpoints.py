"""Checkpoints of a model: the best one, facts about itself, and the model that one holds."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

from ..exact._errors import UserError, listed, note, printable
from ..exact._last_checkpoint import Checkpoint
from ..exact._plain import inside
from ._checkpoint import ABOUT, About, damaged, read_checkpoint, read_hparams
from ._preprocessing import is_preprocessing
from ._settings import (
    argument_names,
    imported_class,
    limited_by,
    network_of_file,
    plain_options,
    remembered,
    require_arguments,
)

if TYPE_CHECKING:
    from ._module import ClassifierModule

_OF_LOSS = "criterion."
_DECISIVE = ("torch", "torchvision", "lightning", "torchmetrics")
"""Packages whose version decides what a checkpoint's numbers are."""
_Model = TypeVar("_Model", bound="ClassifierModule")


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``, in a folder that may be moved.

    Lightning's takes paths from a checkpoint as they are.
    """

    def __init__(self, folder: Path, monitor: str = "val/accuracy", mode: str = "max") -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def load_state_dict(self, state_dict: Checkpoint) -> None:
        """Restores the best score; its checkpoint is in this folder, wherever it was saved.

        Paths in the file do not count: the callback removes what they name. The score of a
        checkpoint that cannot be read any more does not count, either.
        """
        score = state_dict["best_model_score"]
        if score is None:
            return
        path = str(Path(str(self.dirpath)) / f"best{self.FILE_EXTENSION}")
        try:
            read_checkpoint(path)
        except UserError:
            text = f"'{path}' is lost or damaged; the best validation from here on writes it"
            rank_zero_only(note)(text)
            return
        self.best_model_score = self.kth_value = score
        self.best_model_path = self.kth_best_model_path = path
        self.best_k_models = {path: score}


def best_checkpoint(trainer: Trainer) -> BestCheckpoint | None:
    """Returns the callback that keeps ``best.ckpt``; None if no callback does so."""
    callbacks = trainer.checkpoint_callbacks
    return next((part for part in callbacks if isinstance(part, BestCheckpoint)), None)


def change_of_data(about: About, data: object) -> str:
    """Says how data differs from that of a checkpoint; nothing if it does not, or is not ours."""
    digests = _facts(data, "digests")  # which loads it
    sizes = _facts(data, "split_sizes")
    if (before := about.get("images", sizes)) != sizes:
        return f"from {before} images to {sizes}"
    known = about.get("digests", digests)  # not of a checkpoint of before
    others = [split for split, digest in digests.items() if digest != known.get(split)]
    return f"in names, labels or lengths of files of {listed(others)}" if others else ""


def note_change(about: About, data: object) -> None:
    """Notes that data which was opened by a checkpoint differs from it."""
    if change := change_of_data(about, data):
        note(
            f"the data has changed since the checkpoint was trained, {change}; images that it was"
            " trained on may be in other splits"
        )


def _facts(data: object, name: str) -> dict[str, Any]:
    """Returns what a data module says of each split; nothing without one of ours."""
    return dict(getattr(data, name, dict)())


def describe_run(trainer: Trainer, model: "ClassifierModule") -> About:
    """Collects the facts of a checkpoint about itself, as plain data.

    ``thresholds`` are by class, if an image may have several. ``data`` names a class without a
    module to import. ``images`` counts splits, ``digests`` are of their names and labels. ``selection`` says how ``best.ckpt`` is chosen.
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
        thresholds=model.thresholds,
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
        metrics=dict(model.results),
    )


def remember_options(checkpoint: Checkpoint, trainer: Trainer, model: "ClassifierModule") -> None:
    """Makes plain values of the hyperparameters of a model and its data, and notes others once."""
    noted = len(model.left_out)
    for part in (model, getattr(trainer, "datamodule", None)):
        if part is not None:
            options, others = remembered(part.hparams)
            checkpoint[part.CHECKPOINT_HYPER_PARAMS_KEY] = options
            checkpoint.pop(part.CHECKPOINT_HYPER_PARAMS_TYPE, None)
            model.left_out |= dict.fromkeys(others)
    if len(model.left_out) > noted:
        rank_zero_only(note)(
            "checkpoints hold numbers, text, tensors, and lists and dicts of these, so they leave"
            f" out {listed(model.left_out)}; load_from_checkpoint takes them from you"
        )


def opened(
    cls: type[_Model],
    path: str | Path,
    hparams_file: str | Path | None,
    strict: bool | None,
    arguments: dict[str, object],
) -> _Model:
    """Builds a checkpoint's model on the CPU: a ``cls``, or a subclass that is imported.

    ``arguments`` of the constructor replace those in the file.
    """
    checkpoint = read_checkpoint(path)
    if hparams_file is not None:
        checkpoint["hyper_parameters"] = read_hparams(hparams_file)
    model_class = _imported(cls, checkpoint[ABOUT], path)
    options = _options_of(model_class, checkpoint, path, arguments) | arguments
    weights = checkpoint["state_dict"]
    with limited_by(weights, options):
        model = model_class(**options)
        model.configure_model()
    model.on_load_checkpoint(checkpoint)
    weights = checkpoint["state_dict"]  # the hook may change them
    state = model.state_dict()  # it knows the versions of its modules
    for name in [name for name in state if not name.startswith(_OF_LOSS)]:
        del state[name]
    state.update((n, value) for n, value in weights.items() if not n.startswith(_OF_LOSS))
    with fitting(path):
        model.load_state_dict(state, model.strict_loading if strict is None else strict)
    return model


def _options_of(
    model_class: type[_Model],
    checkpoint: Checkpoint,
    path: str | Path,
    arguments: dict[str, object],
) -> dict[str, object]:
    """Returns the arguments of the constructor that the file may decide."""
    not_saved = {*model_class.not_saved, *arguments}
    saved = {
        name: value
        for name, value in checkpoint.get("hyper_parameters", {}).items()
        if name not in not_saved
    }
    with damaged(f"'{path}'"), inside("hyper_parameters"):
        options = plain_options(saved, model_class)
    if chosen := [name for name in saved if name in argument_names(model_class) - options.keys()]:
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
def fitting(path: object) -> Iterator[None]:
    """Says which weights of a file do not fit the model that they are loaded into."""
    try:
        yield
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
            f"'{path}' holds a model of the class {printable(name)}, which is no {cls.__name__} that"
            " is imported here; give --import with its module, besides others as in a,b, or in"
            " Python import it first"
        )
    return model_class
