"""The default callbacks: each can be switched off or given options; the figures, ``metrics.csv`` and lines that they write."""

import logging
import re
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback, ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

from project.analysis.plots import read_curves
from project.callbacks import ImagesPerSecond, MetricsCSV, PlotFiles, ProgressLines
from project.data import SyntheticFlowersDataModule
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import (
    FLOWERS,
    RUN,
    SLIM,
    TINY,
    TINY_DATA,
    TINY_TRAINER,
    as_in_a_terminal,
    cases,
    fit,
    load,
    read_json,
    rows,
    small,
)
from tests.model.test_classifier import Memory, classifier, trainer

NAMES = ["stop_on_non_finite", "last_checkpoint", "best_checkpoint", *FitCLI.default_callbacks]
BARS = ["--trainer.enable_progress_bar=true"]
FIGURES = ["train/first_batch", "val/confusion_matrix", "test/confusion_matrix"]
OFFLINE = {
    "wandb": ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true"],
    "mlflow": ["--trainer.logger=MLFlowLogger", "--trainer.logger.tracking_uri=sqlite:///runs.db"],
}


def kinds(callbacks: list[Callback]) -> set[str]:
    return {type(callback).__name__ for callback in callbacks}


class Unvalidated(SyntheticFlowersDataModule):
    def val_dataloader(self) -> Any:
        return []


@cases(
    "data flag",
    (FLOWERS, "--trainer.check_val_every_n_epoch=5"),
    (f"--data={__name__}.Unvalidated", "--trainer.num_sanity_val_steps=2"),
)
@pytest.mark.filterwarnings("ignore:.*across ranks is zero")
def test_a_run_without_validation_ends_with_its_last_weights_and_claims_no_choice(
    workplace, capsys, caplog, monkeypatch, data, flag
):
    # which Lightning's is not told to do where the root one has no handler
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)
    small(flag, "--trainer.enable_model_summary=true", data=(data, *TINY_DATA))
    assert [row["epoch"] for row in rows(RUN / "metrics.csv")] == ["1", "2"]
    assert read_json(RUN / "metrics.json")["selection"] is None
    said = capsys.readouterr().out
    assert "best.ckpt (step 8, the last)" in said
    assert "Trainable params" in caplog.text + said  # printed if there is the package rich


def test_a_run_without_any_ends_with_its_last_weights(workplace, capsys):
    run: Any = small(*(f"--callbacks.{name}=false" for name in NAMES)).trainer
    ours = ("project", "lightkeeper")
    assert kinds([one for one in run.callbacks if type(one).__module__.startswith(ours)]) == {
        "ExactTraining",
        "CollectPredictions",
        "DescribeCheckpoint",
        "SameOptions",
    }
    assert not (RUN / "plots").exists()
    best = load(RUN / "checkpoints" / "best.ckpt")
    assert (best["global_step"], best["about"]["selection"]) == (8, None)
    assert "best.ckpt (step 8, the last)" in capsys.readouterr().out

    again: Any = small(
        f"--config={RUN}/config.yaml", "--name=again", "--callbacks.confusion_matrix=true"
    ).trainer
    assert kinds(again.callbacks) - kinds(run.callbacks) == {"ConfusionMatrixPlot"}


@pytest.mark.parametrize(("interval", "accumulated", "steps"), [(1, 1, [4, 8]), (10, 2, [2, 4])])
def test_a_row_has_the_newest_of_the_curves(workplace, interval, accumulated, steps):
    RUN.mkdir(parents=True)
    (RUN / "metrics.csv").write_text(
        "epoch,step\n0,4\n1,8\n2,12\n"
    )  # of a run that left no checkpoint
    small(
        f"--trainer.log_every_n_steps={interval}",
        f"--trainer.accumulate_grad_batches={accumulated}",
        callbacks=[
            LambdaCallback(
                on_train_epoch_end=lambda trainer, model: model.log(
                    "late", trainer.current_epoch + 1.0
                )
            )
        ],
    )
    found, curves = rows(RUN / "metrics.csv"), read_curves(RUN)
    assert [(row["epoch"], int(row["step"]), float(row["late"])) for row in found] == [
        ("1", steps[0], 1.0),
        ("2", steps[1], 2.0),
    ]
    for row in found:
        assert {"train/loss", "train/accuracy", "learning_rate", "val/accuracy"} <= row.keys()
        for name in row.keys() & curves.keys():
            step = max(step for step in curves[name] if step < int(row["step"]))
            assert step == int(row["step"]) - 1, name
            assert float(row[name]) == pytest.approx(curves[name][step], rel=1e-6), name
    assert not any("per_second" in name for name in found[0])
    # written after the last checkpoint, a kill would leave a part of it
    files = [RUN / "metrics.csv", RUN / "checkpoints" / "last.ckpt"]
    assert files == sorted(files, key=lambda file: file.stat().st_mtime_ns)
    metrics = read_json(RUN / "metrics.json")
    (best,) = [row for row in found if int(row["epoch"]) == metrics["epoch"]]
    assert float(best["val/accuracy"]) == pytest.approx(metrics["val"]["accuracy"])


def test_metrics_that_callbacks_log_at_the_start_or_end_of_an_epoch_are_in_its_row(workplace):
    # what a checkpoint of that moment, which may be written only then, would have
    saved: list[Any] = []

    def log_late(trainer, model):
        model.log("own", 10.0 * (trainer.current_epoch + 1))
        states: list[Any] = [
            part.state_dict() for part in trainer.callbacks if isinstance(part, MetricsCSV)
        ]
        saved.extend(state["rows"][trainer.current_epoch + 1] for state in states)

    schedule = ["--model.lr_scheduler=MultiStepLR", "--model.lr_scheduler.milestones=[1]"]
    late = LambdaCallback(on_train_epoch_end=log_late)
    small(*schedule, "--trainer.callbacks+=LearningRateMonitor", callbacks=[late])
    found = rows(RUN / "metrics.csv")
    assert [*(float(row["own"]) for row in found), saved[-1]["own"]] == [10, 20, 10]
    assert all(row["learning_rate/pg1"] == row["learning_rate"] for row in found)
    assert float(found[1]["learning_rate"]) == pytest.approx(float(found[0]["learning_rate"]) / 10)


def test_an_epoch_is_a_line_of_the_bars_metrics_and_the_remaining_time(workplace, capsys):
    small(*BARS, "--monitor=val/f1", callbacks=[ProgressLines()])
    metrics = ["train/accuracy", "train/loss", "val/accuracy", "val/f1", "val/loss"]
    shown = ", ".join(rf"{name} \d\.\d{{4}}" for name in metrics)
    epoch = rf"^epoch (\d+) of 2, step (\d+), {shown}, 0:00:0\d left$"
    lines = re.findall(epoch, capsys.readouterr().err, re.M)
    assert lines == [("1", "4"), ("2", "8")]


def test_a_long_epoch_and_a_long_test_are_a_line_a_minute(workplace, monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=count(0.0, 31.0).__next__)  # goes on with each look at it
    monkeypatch.setattr("project.callbacks.progress_lines.time", clock)
    small(*BARS, "--data.test_size=80", callbacks=[ProgressLines()])
    written = capsys.readouterr().err
    steps = re.findall(r"^epoch \d of 2, step (\d),", written, re.M)
    assert {"4", "8"} < {*steps}
    assert re.findall(r"^test: batch (\d) of 5$", written, re.M)


@cases(
    "is_terminal kernel options count ours",
    (False, "", [], 1, True),
    (False, "", ["--trainer.enable_progress_bar=false"], 0, False),
    (False, "", ["--trainer.callbacks+=TQDMProgressBar"], 1, False),
    (True, "", [], 1, False),
    (True, "1", [], 1, True),
)
def test_what_the_user_says_of_progress_bars_wins(
    workplace, monkeypatch, is_terminal, kernel, options, count, ours
):
    monkeypatch.setenv("JPY_PARENT_PID", kernel)  # which Jupyter sets
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: is_terminal)
    with as_in_a_terminal():
        trainer: Any = FitCLI([FLOWERS, *TINY_DATA, *TINY_TRAINER, *options]).trainer
    bars = [type(one) for one in trainer.callbacks if isinstance(one, ProgressBar)]
    assert (len(bars), ProgressLines in bars) == (count, ours)


@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:.*in eval mode")
def test_a_plain_trainer_with_any_data_module_may_have_the_callbacks_that_write(workplace):
    callbacks = [ImagesPerSecond(), MetricsCSV(), PlotFiles()]
    options = {"logger": TensorBoardLogger("elsewhere"), "log_every_n_steps": 1}
    run = trainer(default_root_dir="new/run", callbacks=callbacks, **options)
    run.fit(model := classifier(), datamodule=Memory())
    run.test(model, datamodule=Memory(), verbose=False)
    assert [row["epoch"] for row in rows("new/run/metrics.csv")] == ["1", "2"]
    assert len([*workplace.glob("new/run/plots/*.png")]) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow stands on
@pytest.mark.parametrize("package", OFFLINE)
def test_the_figures_of_a_run_reach_its_logger(package, workplace, monkeypatch):
    pytest.importorskip(package, reason=f"{package} is no requirement")
    monkeypatch.setenv("WANDB_SILENT", "true")
    place = [f"--trainer.logger.artifact_location={workplace}"] if package == "mlflow" else []
    fit(*TINY, *SLIM, "--name=run", "--model.optimizer.lr=0.001", *OFFLINE[package], *place)
    images = " ".join(map(str, workplace.rglob("*.png")))
    assert [tag for tag in FIGURES if f"/{tag}" not in images] == []


class TwoLoaders(SyntheticFlowersDataModule):
    def train_dataloader(self) -> Any:
        return {"one": super().train_dataloader(), "two": super().train_dataloader()}


class FirstLoader(ImageClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch["one"], batch_idx)


def test_the_first_steps_say_once_how_long_training_will_take(workplace, monkeypatch, capsys):
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[-1])
    monkeypatch.setattr("project.callbacks.curves.time", clock)
    tick = LambdaCallback(on_train_batch_start=lambda *_: now.append(now[-1] + 2))
    run = small(
        f"--model={__name__}.FirstLoader",
        "--trainer.max_epochs=10",
        callbacks=[tick],
        data=(f"--data={__name__}.TwoLoaders", *TINY_DATA),
    )
    said = re.findall("training will take about (.*) \\(", capsys.readouterr().err)
    assert said == ["0:00:58"]  # 40 steps without the first 11, of 2 seconds each
    speeds = read_curves(RUN)["train/images_per_second"].values()
    assert {*speeds} == {run.datamodule.batch_size / 2}  # of the first loader


class NoOptimizer(ImageClassifier):
    def configure_optimizers(self) -> Any:
        return None


def test_training_may_have_no_optimizer(workplace):
    small(f"--model={__name__}.NoOptimizer")
    assert "learning_rate" not in read_curves(RUN)
