"""``metrics.csv`` has a row for each epoch, the same after a kill; the learning rate is one curve unless groups differ in it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import LambdaCallback
from torch.optim import SGD

from project.analysis.plots import read_curves
from project.callbacks import ImagesPerSecond, LearningRate, MetricsCSV
from project.model import CosineWithWarmup
from tests.model.test_classifier import Memory, linear, loader_of, trainer
from tests.small import rows, small

RUN = Path("runs/run")
FILE = RUN / "metrics.csv"


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


def test_metrics_that_callbacks_log_at_the_start_or_end_of_an_epoch_are_in_its_row(workplace):
    saved: list[Any] = []  # what a checkpoint of that moment, which may be written only then, would have

    def log_late(trainer, model):
        model.log("own", 10.0 * (trainer.current_epoch + 1))
        saved.extend(one.state_dict()["rows"][-1] for one in trainer.callbacks if isinstance(one, MetricsCSV))

    schedule = ["--model.lr_scheduler=MultiStepLR", "--model.lr_scheduler.milestones=[1]"]
    late = LambdaCallback(on_train_epoch_end=log_late)
    small(*schedule, "--trainer.callbacks+=LearningRateMonitor", callbacks=[late])
    assert [float(row["own"]) for row in rows(FILE)] == [10, 20]
    assert saved[-1]["own"] == 10
    found = [(row["learning_rate/pg1"], row["learning_rate"]) for row in rows(FILE)]
    assert all(monitored == own for monitored, own in found)
    assert float(found[1][1]) == pytest.approx(float(found[0][1]) / 10)


@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.2)])
def test_groups_of_one_rate_share_a_curve(rates):
    def optimizer(groups):
        return SGD([{**group, "lr": rate} for group, rate in zip(groups, rates, strict=True)])

    pairs = loader_of([tuple(batch) for batch in Memory().batches()])  # the speed is that of any loader, too
    run = trainer(max_epochs=1, limit_val_batches=0, log_every_n_steps=1, callbacks=[LearningRate(), ImagesPerSecond()])
    run.fit(linear(optimizer=optimizer, lr_scheduler=partial(CosineWithWarmup, lrf=1.0, warmup_epochs=0)), pairs, pairs)
    assert float(run.callback_metrics["train/images_per_second"]) > 0
    logged = {name: float(value) for name, value in run.callback_metrics.items() if "learning_rate" in name}
    names = ["learning_rate"] if len({*rates}) == 1 else ["learning_rate/pg1", "learning_rate/pg2"]
    assert logged == pytest.approx(dict(zip(names, rates, strict=False)))
