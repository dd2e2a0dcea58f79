"""``last.ckpt`` is saved in time, and a stop is answered; that it resumes exactly is tested in test_resume.py."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import Callback

from project.engine.loading.batch import ArrayDataset
from project.engine.run.checkpoint import AtomicCheckpointIO
from project.engine.run.processes import StopRequest
from tests.conftest import cases
from tests.small import load, small, stop_at

STEPS = 8
RUN, EVERY = Path("runs/run"), "--callbacks.last_checkpoint.every"


@cases("number step", *((number, STEPS if number == signal.SIGINT else 3) for number in StopRequest.SIGNALS))
def test_whoever_stops_a_run_is_told_how_to_resume_it_at_the_very_end_too(workplace, capsys, number, step):
    before = [signal.getsignal(one) for one in StopRequest.SIGNALS]
    assert stop_at(step, number=number).code == 75
    assert f"stopped after step {step}; to resume, run the same command with --name run" in capsys.readouterr().err
    assert [signal.getsignal(one) for one in StopRequest.SIGNALS] == before
    assert not (RUN / "metrics.json").exists()
    small()
    assert (RUN / "metrics.json").exists()


def test_samples_that_were_trained_on_are_not_loaded_again(workplace, monkeypatch):
    served: list[int] = []  # the keys of training samples
    serve = ArrayDataset.__getitems__

    def remember(dataset, wanted):
        served.extend(wanted if len(dataset) == 64 else [])
        return serve(dataset, wanted)

    monkeypatch.setattr(ArrayDataset, "__getitems__", remember)
    small("--name=whole")
    whole = served.copy()
    assert len(whole) == 16 * STEPS
    for step in (3, 4):
        stop_at(step, f"--name=stopped {step}")
        served.clear()
        small(f"--name=stopped {step}")
        assert served == whole[16 * step :]


class Clock(Callback):
    """Moves on with each step and each save, which takes as long as ``saving`` steps; notes what is saved."""

    def __init__(self, saving: float) -> None:
        self.now, self.saving = 0.0, 60 * saving
        self.saved: list[int] = []

    def on_train_batch_end(self, *_) -> None:
        self.now += 60

    def save(self, io: AtomicCheckpointIO, checkpoint: dict[str, Any], path: Path, storage_options=None) -> None:
        if Path(path).name == "last.ckpt":
            self.now += self.saving
            self.saved.append(checkpoint["global_step"])
        SAVE(io, checkpoint, path)


SAVE = AtomicCheckpointIO.save_checkpoint


@cases(
    "flags saving steps",
    (f"{EVERY}_minutes=100", 0.001, [4, 8, 12]),
    (f"{EVERY}_minutes=100", 1, [4, 12]),  # the first shows how long it takes
    (f"{EVERY}_minutes=3", 0.001, [3, 4, 7, 8, 11, 12]),
    (f"{EVERY}_minutes=100 {EVERY}_n_steps=5", 1, [4, 5, 10, 12]),
    (f"--trainer.accumulate_grad_batches=2 {EVERY}_minutes=3", 1, [2, 4, 6]),
)
def test_a_run_saves_when_it_is_time(workplace, monkeypatch, flags, saving, steps):
    clock = Clock(saving)
    monkeypatch.setattr("project.engine.training.last_checkpoint.time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", lambda *args, **kwargs: clock.save(*args, **kwargs))
    small("--trainer.max_epochs=3", *flags.split(), callbacks=[clock])
    assert clock.saved == steps


def test_the_checkpoint_before_the_last_is_kept_until_the_run_is_finished(workplace):
    stop_at(6, "--callbacks.last_checkpoint.every_n_steps=2")
    steps = {path.name: load(path)["global_step"] for path in (RUN / "checkpoints").iterdir()}
    assert steps == {"last.ckpt": 6, "previous.ckpt": 4, "best.ckpt": 4}
    small()
    assert {path.name for path in (RUN / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
