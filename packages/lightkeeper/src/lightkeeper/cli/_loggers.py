"""Loggers that a command line names: their place in the run's folder, and the options they record."""

import re
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, WandbLogger

from ..exact._loggers import ResumingTensorBoardLogger
from ..images._settings import options_of_library


class RunLogger(ResumingTensorBoardLogger):
    """TensorBoard's files in the run's folder.

    Lightning's would begin each run with a metric of -1, and draw the number of the epoch.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="", version="", default_hp_metric=False)

    def save(self) -> None:
        """Writes what was logged, without Lightning's file of options: the run has its own."""
        self.experiment.flush()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs metrics without the epoch, which Lightning adds."""
        named = {name: value for name, value in metrics.items() if name != "epoch"}
        super().log_metrics(named, step)

    def compare_by(self, options: dict[str, int | float | str], curves: list[str]) -> None:
        """Names options and curves for the tab HPARAMS, which shows the last point of each curve.

        Lightning's ``log_hyperparams`` would add a point to the curves.
        """
        from torch.utils.tensorboard.summary import hparams  # here, as it takes a while to import

        for summary in hparams(options, dict.fromkeys(curves)):  # type: ignore[no-untyped-call]
            self.experiment.file_writer.add_summary(summary)


def loggers_of(chosen: object, folder: Path) -> list[Logger]:
    """Returns the run's own logger and those that ``--trainer.logger`` adds; none for ``false``."""
    if chosen is False:
        return []
    added = chosen if isinstance(chosen, list) else [chosen]
    return [
        RunLogger(folder),
        *(part for part in added if isinstance(part, Logger)),
    ]


def place_in_folder(trainer: Namespace, folder: Path) -> None:
    """Puts the relative paths of the loggers that a config names into the run's folder.

    A logger of W&B without an id gets the run's name, by which a resumed run continues there; one of
    MLflow is called so, where the seed would draw the same name for many runs.
    """
    for spec in trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]:
        options: Namespace | None = getattr(spec, "init_args", None)
        if options is None:
            continue
        place = options.get("save_dir")
        if place is not None and "://" not in place:
            options["save_dir"] = str(folder / place)
        if options.get("run_name", "") is None:
            options["run_name"] = folder.name
        is_wandb = issubclass(resolve_name(spec.class_path), WandbLogger)
        if is_wandb and not (options.get("id") or options.get("version")):
            options["id"] = re.sub(r"[^\w.-]", "-", folder.name)[:64]


def log_settings(trainer: Trainer, options: Namespace) -> None:
    """Gives every logger the options of a new run.

    TensorBoard shows them in its tab HPARAMS, beside the monitored metric and the test's.
    """
    plain = {
        name.replace("init_args.", ""): value if isinstance(value, int | float) else str(value)
        for name, value in vars(options.as_flat()).items()
        if name.startswith(("model.", "data.", "trainer.")) and value is not None
    }
    for logger in trainer.loggers if trainer.is_global_zero else []:
        with options_of_library(type(logger), "--trainer.logger"):
            logger.log_hyperparams(plain)
        if isinstance(logger, RunLogger):
            monitor = str(options.monitor)
            logger.compare_by(plain, [monitor, f"test/{monitor.removeprefix('val/')}"])
