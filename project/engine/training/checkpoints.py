"""Checkpoints of a model: the best one and its test, and the model that one holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from ..errors import UserError, listed, printable
from ..preprocessing import is_preprocessing
from ..run.checkpoint import ABOUT, About, Checkpoint, read_checkpoint
from ..run.settings import imported_class, limited_by, network_of_file, plain_options

if TYPE_CHECKING:
    from .module import ClassifierModule

_OF_LOSS = "criterion."
_Model = TypeVar("_Model", bound="ClassifierModule")


def chosen_monitor(
    metric: str, mode: str | None, modes: Mapping[str, str | None]
) -> tuple[str, str]:
    """Returns the metric and the mode that the best checkpoint is chosen by.

    Args:
        metric: The metric that ``--monitor`` names.
        mode: The mode that ``--mode`` names; by default the metric's own.
        modes: The mode of each metric of the validation set, None if it does not say.

    Raises:
        UserError: Nobody says the mode.
    """
    mode = mode or modes.get(metric)
    if mode is None:
        known = [name for name, mode in modes.items() if mode is not None]
        raise UserError(
            f"--monitor {metric} needs --mode min or --mode max; only {listed(known)} do not"
        )
    return metric, mode


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``, in a folder that may be moved.

    Lightning's takes paths from a checkpoint as they are.
    """

    def __init__(self, folder: Path, monitor: str = "val/accuracy", mode: str = "max") -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def load_state_dict(self, state_dict: Checkpoint) -> None:
        """Restores the best score; its checkpoint is in this folder, wherever it was saved.

        Paths in the file do not count: the callback removes what they name.
        """
        score = state_dict["best_model_score"]
        if score is not None:
            path = str(Path(str(self.dirpath)) / f"best{self.FILE_EXTENSION}")
            self.best_model_score = self.kth_value = score
            self.best_model_path = self.kth_best_model_path = path
            self.best_k_models = {path: score}


def best_checkpoint(trainer: Trainer) -> BestCheckpoint | None:
    """Returns the callback that keeps ``best.ckpt``; None if no callback does so."""
    callbacks = trainer.checkpoint_callbacks
    return next((part for part in callbacks if isinstance(part, BestCheckpoint)), None)


def selection(trainer: Trainer) -> dict[str, str] | None:
    """Returns how ``best.ckpt`` is chosen; None if no callback does so."""
    best = best_checkpoint(trainer)
    return {"monitor": str(best.monitor), "mode": best.mode} if best else None


def evaluate_best(
    trainer: Trainer, model: "ClassifierModule", data: LightningDataModule, path: str
) -> About:
    """Tests the weights of a checkpoint, and returns what it says about itself.

    Lightning's ``ckpt_path`` will not do: callbacks would take part, and those that average weights
    put the raw ones back.
    """
    checkpoint = read_checkpoint(path)
    restore_weights(model, checkpoint["state_dict"], path)
    about: About = checkpoint[ABOUT]
    model.thresholds = about.get("thresholds")
    trainer.test(model, datamodule=data, verbose=False)
    return about


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
    restore_weights(model, state, path, strict)
    model.about = checkpoint[ABOUT]
    model.thresholds = model.about.get("thresholds")
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
