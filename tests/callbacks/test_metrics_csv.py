"""``metrics.csv`` has a row for each epoch, the same after a kill, and is whole at every moment."""

import csv
import errno
import json
import os
from pathlib import Path

import pytest
from lightning.pytorch import Callback

from project.analysis.plots import read_curves
from project.callbacks import StoppedError
from tests.memory import needs_linux
from tests.small import AtStep, load, one_line, require_same_end, small
from tests.stress import outcome

RUN = Path("runs/run")
FILE = RUN / "metrics.csv"
LONGER = ["--trainer.max_epochs=4", "--callbacks.last_checkpoint.every_n_steps=1"]


def rows():
    with open(FILE, newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_has_what_the_curves_have_at_the_end_of_its_epoch(workplace):
    small("--trainer.max_epochs=3")
    found, curves = rows(), read_curves(RUN)
    assert [(row["epoch"], row["step"]) for row in found] == [("1", "4"), ("2", "8"), ("3", "12")]
    for row in found:
        for name in ("train/loss", "train/accuracy", "learning_rate", "val/loss", "val/accuracy", "val/top5", "val/f1"):
            logged = curves[name]
            newest = logged[max(step for step in logged if step < int(row["step"]))]
            assert float(row[name]) == pytest.approx(newest, rel=1e-6), name
    assert not any("per_second" in name for name in found[0])
    metrics = json.loads((RUN / "metrics.json").read_text())
    (best,) = [row for row in found if int(row["epoch"]) == metrics["epoch"]]
    assert float(best["val/accuracy"]) == pytest.approx(metrics["val"]["accuracy"])


@pytest.mark.parametrize(("accumulated", "steps"), [(1, [3, 7]), (2, [1, 3])])
def test_training_is_logged_in_epochs_that_are_shorter_than_the_interval(workplace, accumulated, steps):
    small("--trainer.log_every_n_steps=10", f"--trainer.accumulate_grad_batches={accumulated}")
    curves = read_curves(RUN)
    for name in ("train/loss", "train/accuracy", "learning_rate", "train/images_per_second"):
        assert list(curves[name]) == steps, name
    assert all(row["train/loss"] and row["learning_rate"] for row in rows())


class Killed(Callback):
    """Ends the process, as it were, without a word, once a row has been written behind the last checkpoint."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            raise KilledError


class KilledError(Exception):
    pass


@pytest.mark.parametrize("options", [[], ["--trainer.check_val_every_n_epoch=2"], ["--trainer.val_check_interval=3"]])
def test_a_killed_run_has_neither_lost_nor_doubled_rows(workplace, options):
    small(*LONGER, *options, "--trainer.default_root_dir=whole")
    expected, whole = Path("whole/run/metrics.csv").read_bytes(), outcome(Path("whole/run"))
    for epoch in (1, 3):  # the row of the epoch is there, and not in the checkpoint, which is of the step before
        with pytest.raises(KilledError):
            small(*LONGER, *options, callbacks=[Killed(epoch)])
        assert len(rows()) == epoch
        assert load(RUN / "checkpoints" / "last.ckpt")["global_step"] < 4 * epoch
    small(*LONGER, *options)
    assert FILE.read_bytes() == expected
    require_same_end(RUN, whole)


def test_a_stop_between_validation_and_the_end_of_an_epoch_keeps_its_metrics(workplace):
    options = [*LONGER, "--trainer.val_check_interval=2"]
    small(*options, "--name=whole")
    with pytest.raises(StoppedError):
        small(*options, callbacks=[AtStep(3)])
    small(*options)
    assert FILE.read_bytes() == (RUN.with_name("whole") / "metrics.csv").read_bytes()


def test_rows_of_a_run_that_left_no_checkpoint_are_gone(workplace):
    RUN.mkdir(parents=True)
    FILE.write_text("epoch,step\n0,4\n1,8\n")
    small("--trainer.max_epochs=1")
    assert len(rows()) == 1


@needs_linux
def test_on_a_full_disk_the_rows_stay_whole_and_the_error_is_one_line(workplace, monkeypatch, capsys):
    own, written = os.fsync, []

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".metrics.partial.csv"):
            written.append(descriptor)
            if len(written) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        own(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert "No space left" in one_line(lambda: small(*LONGER), capsys)
    assert [row["epoch"] for row in rows()] == ["1"]
    assert not list(RUN.glob(".metrics*"))
    small(*LONGER)
    assert [row["epoch"] for row in rows()] == ["1", "2", "3", "4"]


def test_it_can_be_switched_off(workplace):
    small("--callbacks.metrics_csv=false")
    assert not FILE.exists()
