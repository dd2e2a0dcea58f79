"""TensorBoard's files of a run, which go on where a checkpoint was made."""

from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger

_EVENT_FILES = "events.out.tfevents.*"


class RunLogger(TensorBoardLogger):
    """TensorBoard's files alone: what Lightning's ``hparams.yaml`` would say, the run's ``config.yaml`` says better."""

    def save(self) -> None:
        """Flushes the event file."""
        self.experiment.flush()

    def lengths(self) -> dict[str, int]:
        """How long each event file is once everything is written, in bytes, by name."""
        self.save()
        return {path.name: path.stat().st_size for path in Path(self.log_dir).glob(_EVENT_FILES)}


def rewind(folder: Path, lengths: dict[str, int]) -> None:
    """Takes away what was logged after a checkpoint, as it will be logged again.

    Args:
        folder: The run's folder.
        lengths: What :meth:`RunLogger.lengths` was when the checkpoint was made.
    """
    for path in folder.glob(_EVENT_FILES):
        if path.name not in lengths:
            path.unlink()
        elif path.stat().st_size > lengths[path.name]:
            with open(path, "r+b") as file:
                file.truncate(lengths[path.name])
