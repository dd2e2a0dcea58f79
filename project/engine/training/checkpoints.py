"""Checkpoints of a model: the best one, facts about itself, and the model that one holds."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

from ..errors import UserError, listed, note, printable
from ..preprocessing import is_preprocessing
from ..run.checkpoint import ABOUT, About, Checkpoint, read_checkpoint
from ..run.settings import imported_class, limited_by, network_of_file, plain_options

if TYPE_CHECKING:
    from .module import ClassifierModule

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
    if (sizes := _facts(data, "split_sizes")) != about["images"]:
        return f"from {about['images']} images to {sizes}"
    known = about.get("digests")
    if not isinstance(known, dict):  # a checkpoint of before
        return ""
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
    best = best_checkpoint(trainer)
    # afterwards Lightning counts on
    training = trainer.state.fn == "fit" and not trainer.state.finished
    return About(
        model=type(model).__name__,
        class_names=model.class_names,
        preprocessing=model.preprocessing,
        thresholds=model.thresholds,
        arch=model.arch,
        arch_args=model.arch_args or {},
        data={"class_path": type(data).__name__, "init_args": dict(data.hparams)} if data else None,
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
    channels = len(options["preprocessing"]["mean"])
    with limited_by(weights, options.get("class_names", ()), options.get("arch_args"), channels):
        model = model_class(**options)
    state = model.state_dict()  # it knows the versions of its modules
    for name in [name for name in state if not name.startswith(_OF_LOSS)]:
        del state[name]
    state.update((n, value) for n, value in weights.items() if not n.startswith(_OF_LOSS))
    restore(model, checkpoint | {"state_dict": state}, path, strict)
    return model


def restore(
    model: "ClassifierModule", checkpoint: Checkpoint, path: object, strict: bool = True
) -> None:
    """Loads weights and facts into a model; the UserError says which weights do not fit it."""
    try:
        model.load_state_dict(checkpoint["state_dict"], strict)
    except RuntimeError as error:
        problem = printable(" ".join(str(error).split()))
        raise UserError(f"'{path}' does not fit this model: {problem}") from error
    model.about = checkpoint[ABOUT]
    model.thresholds = model.about.get("thresholds")


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
