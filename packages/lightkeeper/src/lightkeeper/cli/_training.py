"""The work of ``fit``: training, one test of the best checkpoint, and what is said at the end."""

import math
import os
import shlex
import time
from datetime import datetime, timedelta
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor

from ..exact._checkpoint_io import Checkpoint
from ..exact._errors import LocalError, NonFiniteError, UserError
from ..exact._files import CHECKPOINTS
from ..exact._last_checkpoint import LastCheckpoint
from ..exact._training import has_timed_out
from ..exact._upstream import callbacks_of
from ..images._best_checkpoint import BestCheckpoint, best_checkpoint
from ..images._checkpoint import ABOUT, About, read_checkpoint
from ..images._checkpoints import fitting, measured
from ._entry import OF_MACHINE, describe_error
from ._folder import Metrics, RunFolder


def train(
    trainer: Trainer,
    model: LightningModule,
    data: LightningDataModule,
    resume: str | None,
) -> str | None:
    """Trains to the end; returns what ended it early, a time limit, if one did."""
    with fitting(resume, type(model)):
        trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=True)
    if trainer.should_stop and has_timed_out(trainer):
        return (
            f"training ended after step {trainer.global_step}, at the time limit of"
            " --trainer.max_time or a Timer"
        )
    return None


def test_best(
    trainer: Trainer, model: LightningModule, data: LightningDataModule, run: RunFolder
) -> None:
    """Tests the best checkpoint, which is the end of training if none was kept."""
    # names without --name differ between processes
    best = trainer.strategy.broadcast(str(run.best))
    kept = best_checkpoint(trainer)
    if kept is None or not kept.best_model_path:
        # as where training ends before an epoch does
        trainer.validate(model, datamodule=data, verbose=False)
        trainer.save_checkpoint(best)
        trainer.strategy.barrier()
    with fitting(best, type(model)):
        trainer.test(model, datamodule=data, ckpt_path=best, verbose=False, weights_only=True)


def final_metrics(trainer: Trainer, model: LightningModule, run: RunFolder, best: About) -> Metrics:
    """Returns the metrics of a run; ``best`` is what the tested checkpoint says of itself."""
    return {
        "checkpoint": str(run.best.relative_to(run.path)),
        "epoch": best["epoch"] + 1,
        **{name: best[name] for name in ("step", "selection", "class_names", "versions")},
        **{name: best.get(name) for name in ("images", "digests")},
        "val": best["metrics"].get("val"),
        "test": measured(trainer, model).get("test", {}),
    }


def record_of(trainer: Trainer, command: str, started: float, resumed_step: int) -> Metrics:
    """Returns how a run was made: its last command, that one's duration, and the hardware.

    ``started`` is by the monotonic clock, which no change to winter time sets back.
    """
    seconds = round(time.monotonic() - started)
    device = trainer.strategy.root_device
    name = str(torch.cpu.get_capabilities().get("cpu_name") or device.type)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "command": command,
        "ended": f"{datetime.now():%Y-%m-%d %H:%M}",
        "duration": str(timedelta(seconds=seconds)),
        "resumed_step": resumed_step,
        "hardware": f"{trainer.world_size} x {name}",
    }


def way_to_resume(trainer: Trainer, run: RunFolder, command: str) -> str:
    """Says how a run that was stopped resumes, or starts again if it keeps no last checkpoint."""
    # without --name, the first process's name is this one's as soon as they have agreed
    kept = best_checkpoint(trainer)
    folder = Path(kept.dirpath).parent if kept and kept.dirpath else run.path
    if run.path.resolve() == folder.resolve():  # a link has a name of its own
        folder = run.path
    verb = "resume" if keeps_last(trainer) else "start again"
    name = shlex.quote(folder.name)
    return f"to {verb}, run {command} with the same options and --name {name}"


def require_own_best(trainer: Trainer, best: Path, resumed: Checkpoint) -> None:
    """Refuses a best.ckpt that is not the one of a run that resumes, as it may be tested.

    It may be of other classes or another network, or of an earlier epoch, as a copy of a run that
    trains. A newer or better one than the run knows of may be what a kill has left.
    """
    about = resumed[ABOUT]
    kept = best_checkpoint(trainer)
    has_one = about.get("selection") and "val" in about["metrics"]
    if kept is None or not has_one:
        return
    try:
        found = read_checkpoint(best)
    except UserError:  # lost or damaged, as its callback says
        return
    differs = any(found[ABOUT][name] != about[name] for name in ("class_names", "arch"))
    is_earlier = found[ABOUT]["step"] < about["step"]
    known, own = (_score(part.get("callbacks"), kept) for part in (resumed, found))
    if differs or (is_earlier and known and own and own < known):
        raise LocalError(f"'{best}' is not the best of this run; put that back, or remove it")


def _score(states: object, kept: BestCheckpoint) -> tuple[float, float] | None:
    """Returns the best score and its loss in the states of callbacks; the larger, the better."""
    state = states.get(kept.state_key) if isinstance(states, dict) else None
    names = ("best_model_score", "best_loss")
    score, loss = map(state.get, names) if isinstance(state, dict) else (None, None)
    if not isinstance(score, Tensor) or score.numel() != 1:
        return None
    sign = 1 if kept.mode == "max" else -1
    return sign * float(score), -loss if isinstance(loss, float) else math.inf


def is_of_machine(error: BaseException) -> bool:
    """Returns True if a run may resume after an error, such as a full disk or a broken file."""
    if describe_error(error) in OF_MACHINE:
        return True
    if isinstance(error, RuntimeError):  # as torch says of a full disk
        return isinstance(error.__context__, OSError)
    return isinstance(error, LocalError | OSError) and not isinstance(error, NonFiniteError)


def is_of_folder(error: BaseException, folder: Path) -> bool:
    """Returns True if an error says that a file of a folder, which is gone, is not there."""
    file = error.filename if isinstance(error, FileNotFoundError) else None
    if file is None or (folder / CHECKPOINTS).exists():
        return False
    return Path(os.fsdecode(file)).absolute().is_relative_to(folder.absolute())


def keeps_last(trainer: Trainer) -> bool:
    """Returns True if a run keeps the checkpoint to resume from."""
    return any(isinstance(callback, LastCheckpoint) for callback in callbacks_of(trainer))
