"""What a checkpoint holds of the classifier, and building one from it; nothing that the file says is imported or run."""

from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.utilities import rank_zero_only

from project.engine.errors import UserError, printable
from project.engine.preprocessing import is_preprocessing
from project.engine.run.checkpoint import ABOUT, explain, read_model
from project.engine.run.file_network import limited_by
from project.engine.run.matching import changed_images
from project.engine.run.progress import note
from project.engine.run.settings import imported_class, plain_options
from project.engine.training.fitting import require_fitting_values, require_fitting_weights
from project.engine.training.unsupported import require_resumable
from project.model.losses import without_loss
from project.model.networks import network_of_file
from project.model.pretrained import load_state

# a callable would keep a checkpoint from loading with weights_only=True; a file may be gone by then
NOT_REMEMBERED = ["loss", "optimizer", "lr_scheduler", "weights", "compile"]

_Model = TypeVar("_Model", bound=LightningModule)


def contents(model: Any) -> dict[str, Any]:
    """What a checkpoint holds of a classifier in training, beside Lightning's own.

    Args:
        model: An ``ImageClassifier`` with its trainer.

    Returns:
        Plain data and tensors: the model's options, what the checkpoint says of itself, the settings and findings of the
        optimization, and the metrics' open counts.
    """
    return {
        "hyper_parameters": plain_options(model.hparams, type(model)),
        ABOUT: explain(model.trainer, model, **model.training_summary()),
        **model.optimization.state(model),
        "counts": model.train_metrics.counts(),
    }


def restore(model: Any, checkpoint: dict[str, Any]) -> None:
    """Restores :func:`contents` before Lightning loads the weights; all but the weights is for training alone.

    Args:
        model: An ``ImageClassifier`` with its trainer.
        checkpoint: All of it.

    Raises:
        UserError: The weights do not fit the network, or are not finite; or a run cannot be resumed from the rest.
    """
    trainer, source = model.trainer, model.trainer.ckpt_path
    require_fitting_weights(model.state_dict(), checkpoint["state_dict"], source)
    if isinstance(trainer.precision_plugin, DoublePrecision):  # Lightning's turn comes when weights were rounded to fit
        trainer.precision_plugin.convert_module(model)
    if not trainer.training:
        return
    if not model.optimization.finders.searching:
        require_resumable(trainer)
        if changed := changed_images(checkpoint[ABOUT], trainer.datamodule):
            rank_zero_only(note)(f"{changed}; what this epoch has left is drawn from these")
    progress = {"fit_loop": trainer.fit_loop.state_dict()}
    require_fitting_values(progress, checkpoint.get("loops"), "the progress of training", source)
    measured = checkpoint[ABOUT]["metrics"]
    model.resumed_results = {split: measured[split] for split in ("val", "test") if split in measured}
    model.optimization.load(checkpoint, model)
    if trainer.is_global_zero:  # they are those of all processes
        model.train_metrics.set_counts(checkpoint["counts"])


def load_model(cls: type[_Model], path: str | Path, strict: bool, changes: dict[str, Any]) -> _Model:
    """Builds a model of the class that a checkpoint names, with its options and weights, on the CPU.

    Args:
        cls: What the class is, or derives from; a class of one's own also takes the checkpoint of what it derives from.
        path: The checkpoint.
        strict: Whether the weights must be exactly those of the model; those of a loss need not be.
        changes: Options that are other than then.

    Raises:
        UserError: The file is missing, is damaged, holds no model, or one of a class that is not imported, or with
            options or weights that do not fit.
    """
    checkpoint = read_model(path)
    found = _imported(cls, checkpoint.get(ABOUT), path)
    said = plain_options(checkpoint["hyper_parameters"], found)
    options = {name: value for name, value in said.items() if name not in NOT_REMEMBERED} | changes
    if "arch" in options and "arch" not in changes:
        unchecked = None if "arch_args" in changes else options.get("arch_args")
        options["arch"] = network_of_file(str(options["arch"]), unchecked)
    if "preprocessing" in options and not is_preprocessing(options["preprocessing"]):
        raise UserError(f"'{path}' does not say how images are prepared: its preprocessing cannot be used")
    if not isinstance(options.get("arch_args") or {}, dict):
        raise UserError(f"'{path}' does not name the arguments of its network: its arch_args cannot be used")
    try:
        with limited_by(checkpoint["state_dict"], options.get("class_names", ()), options.get("arch_args")):
            model = found(**options)
    except TypeError as error:
        raise UserError(f"'{path}': {found.__name__} does not take the options that it remembers: {error}") from error
    weights = without_loss(checkpoint["state_dict"])
    if strict:
        require_fitting_weights(without_loss(model.state_dict()), weights, path)
    load_state(model, weights)
    return model


def _imported(cls: type[_Model], about: Any, path: str | Path) -> type[_Model]:
    name = about.get("model") if isinstance(about, dict) else None
    if name is None or name in [base.__name__ for base in cls.__mro__]:
        return cls
    found = imported_class(str(name), cls)
    if found is None:
        raise UserError(
            f"'{path}' holds a {printable(name)}, which is no {cls.__name__} that is imported here; give --import with"
            " the module that defines it, or in Python import it first"
        )
    return found
