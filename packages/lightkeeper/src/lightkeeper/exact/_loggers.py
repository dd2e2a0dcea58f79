"""TensorBoard's files of a run, rewound when it resumes."""

import math
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from ._errors import note
from ._upstream import is_accumulating

_EVENT_FILES = "events.out.tfevents.*"


class RunLogger(TensorBoardLogger):
    """TensorBoard's files in the run's folder.

    Lightning's would begin each run with a metric of -1, and draw the number of the epoch.
    """

    NAME_HPARAMS_FILE = "config.yaml"  # the run's, so that Lightning writes none beside it

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="", version="", default_hp_metric=False)

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


def curve_lengths(trainer: Trainer) -> dict[str, int]:
    """Returns the size of each of the run's event files in bytes, once everything is written."""
    for logger in trainer.loggers if trainer.is_global_zero else []:
        if isinstance(logger, RunLogger):
            logger.save()
            files = Path(logger.log_dir).glob(_EVENT_FILES)
            return {path.name: path.stat().st_size for path in files}
    return {}


def rewind(folder: Path, lengths: dict[str, int]) -> None:
    """Removes what was logged after a checkpoint, which the run will log again."""
    files = [*folder.glob(_EVENT_FILES)]
    sizes = {path.name: path.stat().st_size for path in files}
    for name in [name for name, length in lengths.items() if sizes.get(name, 0) < length]:
        note(f"'{folder / name}' is lost or cut, and with it curves of before")
    for path in files:
        if path.name not in lengths:
            path.unlink()
        elif sizes[path.name] > lengths[path.name]:
            with open(path, "r+b") as file:
                file.truncate(lengths[path.name])


def logging_interval(trainer: Trainer) -> int:
    """Returns the number of steps between two that are logged: at most an epoch's; 0 logs none."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
    return math.ceil(min(every, trainer.num_training_batches / trainer.accumulate_grad_batches))


def is_logged(trainer: Trainer) -> bool:
    """Returns True if the current batch concludes a step after which training is logged.

    That is every ``log_every_n_steps``, or the last step of each epoch that has fewer.
    """
    every = logging_interval(trainer)
    if every == 0 or is_accumulating(trainer):
        return False
    return trainer.global_step % every == 0 or trainer.should_stop
