"""TensorBoard's curves are rewound at a resume; loggers of the user's write into the run's folder."""

import csv
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from project.engine.run.loggers import RunLogger, curve_lengths, place_in_folder, rewind
from tests.small import small, stop_at
from tests.test_fit import events


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def log(folder, *steps: int):
    logger = RunLogger(folder)
    for step in steps:
        logger.log_metrics({"loss": 0.5 * step}, step)
    return Trainer(accelerator="cpu", logger=logger, default_root_dir=folder, enable_checkpointing=False)


def curve(folder, tag="loss") -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder), purge_orphaned_data=False)
    accumulator.Reload()
    return sorted((event.step, event.value) for event in accumulator.Scalars(tag))


def test_what_was_logged_after_a_checkpoint_vanishes(folder):
    log(folder, 0, 1).logger.finalize("success")
    trainer = log(folder, 2, 3)
    lengths = curve_lengths(trainer)
    assert lengths == {path.name: path.stat().st_size for path in folder.iterdir()}
    trainer.logger.log_metrics({"loss": 9.0}, 4)
    trainer.logger.finalize("success")
    log(folder, 4, 5).logger.finalize("success")
    assert len(list(folder.iterdir())) == 3
    rewind(folder, lengths)
    assert set(lengths) == {path.name for path in folder.iterdir()}
    assert curve(folder) == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]
    log(folder, 4).logger.finalize("success")
    assert curve(folder) == [(step, 0.5 * step) for step in range(5)]
    rewind(folder, {})
    assert not list(folder.glob("*tfevents*"))


def spec(kind, **arguments):
    return Namespace(class_path=f"lightning.pytorch.loggers.{kind}", init_args=Namespace(**arguments))


def test_places_are_within_the_runs_folder_unless_they_are_absolute_and_wandb_continues_by_its_name(tmp_path):
    places = [".", "/logs", "s3://bucket/x", None]
    loggers = [spec("CSVLogger", save_dir=place) for place in places]
    wandb = [spec("WandbLogger", **given) for given in ({}, {"id": "mine"}, {"version": "v"})]
    trainer = Namespace(logger=loggers + wandb, profiler=spec("Logger", dirpath="times"))
    run = tmp_path / "my run"
    place_in_folder(trainer, run)
    assert [one.init_args.save_dir for one in loggers] == [str(run), "/logs", "s3://bucket/x", None]
    assert [one.init_args.get("id") for one in wandb] == ["my-run", "mine", None]
    assert trainer.profiler.init_args.dirpath == str(run / "times")
    for value in (None, True, False):
        place_in_folder(Namespace(logger=value, profiler=None), run)


class RecordingLogger(Logger):
    name, version = "own", ""
    settings: ClassVar[list[dict[str, Any]]] = []
    rows: ClassVar[list[dict[str, Any]]] = []

    def log_hyperparams(self, params, *args, **kwargs) -> None:
        self.settings.append(params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({"step": step, **{name: value for name, value in metrics.items() if "per_sec" not in name}})


def test_loggers_of_the_users_get_settings_once_and_each_metric_once(workplace):
    flags = [f"--trainer.logger={__name__}.RecordingLogger", "--trainer.logger+=CSVLogger"]
    flags += ["--trainer.profiler=SimpleProfiler", "--trainer.profiler.filename=times"]
    flags += ["--trainer.plugins=AsyncCheckpointIO", "--model.optimizer.lr=0.2"]
    settings, whole = RecordingLogger.settings, RecordingLogger.rows
    small(*flags, "--trainer.default_root_dir=whole")
    assert "FIT Profiler Report" in Path("whole/run/fit-times.txt").read_text()
    assert "whole/run" not in Path("whole/run/config.yaml").read_text()  # so that another run can use it
    assert len(settings) == 1
    known = {"arch": "resnet18", "optimizer.lr": 0.2, "batch_size": 16, "max_epochs": 2}
    assert {name: settings[0][name] for name in known} == known
    assert all(isinstance(value, bool | int | float | str) for value in settings[0].values())
    scalars = events(Path("whole/run"))
    (rows,) = Path("whole/run").glob("lightning_logs/*/metrics.csv")
    with open(rows, newline="") as file:
        by_csv = list(csv.DictReader(file))
    for tag in ("train/loss", "val/accuracy", "test/f1"):
        logged: list[Any] = [(row["step"], pytest.approx(row[tag], rel=1e-6)) for row in whole if tag in row]
        assert [(event.step, event.value) for event in scalars.Scalars(tag)] == logged
        assert [(int(row["step"]), float(row[tag])) for row in by_csv if row[tag]] == logged
    expected = list(whole)
    whole.clear()
    stop_at(6, *flags)
    small(*flags)
    assert len(settings) == 2
    assert whole == expected
