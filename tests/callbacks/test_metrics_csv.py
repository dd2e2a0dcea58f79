"""``metrics.csv`` has a row for each epoch, the same after a kill, and is whole at every moment."""

import json
from pathlib import Path

import pytest
from lightning.pytorch import Callback

from project.analysis.plots import read_curves
from project.callbacks import MetricsCSV, StoppedError
from tests.small import AtStep, load, require_same_end, rows, small
from tests.stress import outcome

RUN = Path("runs/run")
FILE = RUN / "metrics.csv"
LONGER = ["--trainer.max_epochs=4", "--callbacks.last_checkpoint.every_n_steps=1"]


@pytest.mark.parametrize(("interval", "accumulated", "steps"), [(1, 1, [4, 8]), (10, 2, [2, 4])])
def test_a_row_has_the_newest_of_the_curves(workplace, interval, accumulated, steps):
    FILE.parent.mkdir(parents=True)
    FILE.write_text("epoch,step\n0,4\n1,8\n2,12\n")  # of a run that left no checkpoint
    small(f"--trainer.log_every_n_steps={interval}", f"--trainer.accumulate_grad_batches={accumulated}")
    found, curves = rows(FILE), read_curves(RUN)
    assert [(row["epoch"], int(row["step"])) for row in found] == [("1", steps[0]), ("2", steps[1])]
    for row in found:
        for name in ("train/loss", "train/accuracy", "learning_rate", "val/loss", "val/accuracy", "val/top5", "val/f1"):
            step = max(step for step in curves[name] if step < int(row["step"]))
            assert step == int(row["step"]) - 1, name
            assert float(row[name]) == pytest.approx(curves[name][step], rel=1e-6), name
    assert not any("per_second" in name for name in found[0])
    metrics = json.loads((RUN / "metrics.json").read_text())
    (best,) = [row for row in found if int(row["epoch"]) == metrics["epoch"]]
    assert float(best["val/accuracy"]) == pytest.approx(metrics["val"]["accuracy"])


class LogsLate(Callback):
    """Logs at the end of an epoch, and keeps the rows that a checkpoint would have then."""

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("own", 10.0 * (trainer.current_epoch + 1))
        (callback,) = [one for one in trainer.callbacks if isinstance(one, MetricsCSV)]
        self.saved = callback.state_dict()["rows"]


def test_metrics_that_callbacks_log_at_the_end_of_an_epoch_are_in_its_row(workplace):
    small(callbacks=[late := LogsLate()])
    assert [float(row["own"]) for row in rows(FILE)] == [10, 20]
    assert late.saved[-1]["own"] == 10  # a checkpoint of that moment may be written only now


def test_metrics_that_callbacks_log_at_the_start_of_an_epoch_are_in_its_row(workplace):
    schedule = ["--model.lr_scheduler=MultiStepLR", "--model.lr_scheduler.milestones=[1]"]
    small(*schedule, "--trainer.callbacks+=LearningRateMonitor")
    found = [(row["learning_rate/pg1"], row["learning_rate"]) for row in rows(FILE)]
    assert all(monitored == own for monitored, own in found)
    assert float(found[1][1]) == pytest.approx(float(found[0][1]) / 10)


class Killed(Callback):
    """Fails once a row has been written behind the last checkpoint."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            raise ZeroDivisionError


@pytest.mark.parametrize("options", [["--trainer.check_val_every_n_epoch=2"], ["--trainer.val_check_interval=2"]])
def test_an_interrupted_run_has_neither_lost_nor_doubled_rows(workplace, options):
    small(*LONGER, *options, "--trainer.default_root_dir=whole")
    expected, whole = Path("whole/run/metrics.csv").read_bytes(), outcome(Path("whole/run"))
    for epoch in (1, 3):  # the row of the epoch is there, and not in the checkpoint, which is of the step before
        with pytest.raises(ZeroDivisionError):
            small(*LONGER, *options, callbacks=[Killed(epoch)])
        assert len(rows(FILE)) == epoch
        assert load(RUN / "checkpoints" / "last.ckpt")["global_step"] < 4 * epoch
    with pytest.raises(StoppedError):  # between a validation and the end of its epoch
        small(*LONGER, *options, callbacks=[AtStep(15)])
    small(*LONGER, *options)
    assert FILE.read_bytes() == expected
    require_same_end(RUN, whole)
