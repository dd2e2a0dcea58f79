"""Loggers of a run: TensorBoard's files, which are rewound where a run resumes, and those that the user adds."""

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.tensorboard.summary import hparams

from ..errors import require
from ..upstream import is_accumulating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EVENT_FILES = "events.out.tfevents.*"


class RunLogger(TensorBoardLogger):
    """TensorBoard's files in the run's own folder, without ``hparams.yaml``: the run has its ``config.yaml``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="", version="")

    def save(self) -> None:
        """Flushes the event file."""
        self.experiment.flush()


def loggers_of(given: Any, folder: Path) -> list[Logger]:
    """Returns the run's own logger and those that ``--trainer.logger`` adds; none for ``false``."""
    if given is False:
        return []
    added = [] if given in (None, True) else [given] if isinstance(given, Logger) else list(given)
    return [RunLogger(folder), *added]


def place_in_folder(trainer: Namespace, folder: Path) -> None:
    """Puts the relative paths of the loggers and the profiler that a config names into the run's folder.

    A logger of W&B without an id gets the run's name, by which a resumed run continues there.
    """
    loggers = trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]
    for spec, argument in [
        *((logger, "save_dir") for logger in loggers),
        (trainer.profiler, "dirpath"),
    ]:
        if not isinstance(spec, Namespace) or spec.get("init_args") is None:
            continue
        given, kind = spec.init_args, class_of(spec)
        if isinstance(kind, type) and issubclass(
            kind, WandbLogger | MLFlowLogger
        ):  # others write to addresses, too
            wanted = "a folder of this machine, not an address"
            require(
                "://" not in str(given.get(argument)),
                f"--trainer.logger.{argument}",
                given.get(argument),
                wanted,
            )
        if (path := given.get(argument)) is not None and "://" not in str(path):
            given[argument] = str(folder / path)
        if (
            isinstance(kind, type)
            and issubclass(kind, WandbLogger)
            and not (given.get("id") or given.get("version"))
        ):
            given["id"] = re.sub(r"[^\w.-]", "-", folder.name)[:64]


def class_of(spec: Any) -> Any:
    """Returns the class that a part of a config names, if it names one; the parser has imported it."""
    if not isinstance(spec, Namespace) or "class_path" not in spec:
        return None
    module, _, name = spec.class_path.rpartition(".")
    return getattr(import_module(module), name)


def curve_lengths(trainer: Trainer) -> dict[str, int]:
    """Returns the size of each of the run's event files in bytes, by name, once everything is written."""
    for logger in trainer.loggers if trainer.is_global_zero else []:
        if isinstance(logger, RunLogger):
            logger.save()
            return {
                path.name: path.stat().st_size for path in Path(logger.log_dir).glob(_EVENT_FILES)
            }
    return {}


def rewind(folder: Path, lengths: dict[str, int]) -> None:
    """Removes what was logged after a checkpoint, with its ``curve_lengths``, as it will be logged again."""
    for path in folder.glob(_EVENT_FILES):
        if path.name not in lengths:
            path.unlink()
        elif path.stat().st_size > lengths[path.name]:
            with open(path, "r+b") as file:
                file.truncate(lengths[path.name])


def is_logged(trainer: Trainer) -> bool:
    """Returns True if the current batch concludes an optimizer step after which Lightning logs training."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
    if every == 0 or is_accumulating(trainer):
        return False
    return trainer.global_step % every == 0 or trainer.should_stop


def tensorboards(trainer: Trainer) -> list[TensorBoardLogger]:
    """Returns TensorBoard's loggers that this process writes to."""
    loggers = trainer.loggers if trainer.is_global_zero else []
    return [logger for logger in loggers if isinstance(logger, TensorBoardLogger)]


def log_figure(
    trainer: Trainer, tag: str, draw: Callable[[], "Figure"], step: int | None = None
) -> None:
    """Draws a figure for the loggers that take images: TensorBoard's, W&B's and MLflow's.

    Draws nothing without one. The default step is where Lightning logs the newest metrics.
    """
    kinds = TensorBoardLogger | WandbLogger | MLFlowLogger
    loggers = [logger for logger in trainer.loggers if isinstance(logger, kinds)]
    if not loggers or not trainer.is_global_zero:
        return
    figure = draw()
    step = max(trainer.global_step - 1, 0) if step is None else step
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(tag, figure, global_step=step)
        elif isinstance(logger, WandbLogger):
            logger.log_image(tag, [figure], step)
        else:
            logger.experiment.log_figure(logger.run_id, figure, f"{tag}/{step}.png")


def log_settings(trainer: Trainer, values: dict[str, Any], metrics: Iterable[str]) -> None:
    """Gives every logger the settings of a new run; TensorBoard's tab HPARAMS shows them beside the named metrics."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= (
            {f"{name}.{inner}": one for inner, one in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    flat |= {
        "data": type(data).__name__,
        "max_epochs": trainer.max_epochs,
        "precision": trainer.precision,
    }
    flat |= {name: getattr(data, name, None) for name in ("image_size", "batch_size", "seed")}
    plain = {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in flat.items()
    }
    shown = {f"{split}/{name}": 0 for split in ("val", "test") for name in metrics}
    for logger in trainer.loggers:
        if not isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(plain)
    for tensorboard in tensorboards(
        trainer
    ):  # whose log_hyperparams would log a zero of each metric, too
        for summary in hparams(plain, shown):  # type: ignore[no-untyped-call]
            tensorboard.experiment.file_writer.add_summary(summary)
