"""Loggers and plugins of the user's are added to a run's own, write into its folder, and resume where it does."""

import csv
import logging
from pathlib import Path

import pytest
import yaml
from jsonargparse import Namespace
from lightning.pytorch.loggers import Logger

from project.run.loggers import RunCSVLogger, placed
from tests.small import require_same_end, small, stop_at
from tests.stress import outcome
from tests.test_fit import events

RUN = Path("runs/run")
LOGGED = RUN / "csv_logs" / "metrics.csv"


def rows(path):
    """The rows of a CSV file, without what is never the same."""
    with open(path, newline="") as file:
        return [
            {name: value for name, value in row.items() if "per_second" not in name} for row in csv.DictReader(file)
        ]


def files(folder):
    """The names of files, without TensorBoard's and plots."""
    found = {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".png"}
    return {name for name in found if "tfevents" not in name}


class Listener(logging.Handler):
    def __init__(self):
        super().__init__()
        self.heard = []

    def emit(self, record):
        self.heard.append(record.getMessage())


def test_a_csv_file_asynchronous_checkpoints_and_a_profile_are_added_and_a_stopped_run_goes_on(
    workplace, tmp_path, monkeypatch
):
    added = ["--trainer.logger=CSVLogger", "--trainer.plugins=AsyncCheckpointIO", "--trainer.profiler=simple"]
    listener = Listener()
    logging.getLogger("lightning.pytorch.profilers").addHandler(listener)
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    small(*added)
    logging.getLogger("lightning.pytorch.profilers").removeHandler(listener)
    assert any("FIT Profiler Report" in text for text in listener.heard)
    assert files(Path()) == {"config.yaml", "metrics.json", "metrics.csv", "best.ckpt", "last.ckpt"}
    whole, expected = rows(LOGGED), outcome(RUN)
    scalars = events(RUN)
    for tag in ("train/loss", "val/accuracy", "test/f1"):
        logged = [(int(row["step"]), pytest.approx(float(row[tag]), rel=1e-6)) for row in whole if row[tag]]
        assert [(event.step, event.value) for event in scalars.Scalars(tag)] == logged
    loggers = yaml.safe_load((RUN / "config.yaml").read_text())["trainer"]["logger"]
    assert loggers["class_path"].endswith(".CSVLogger")
    assert loggers["init_args"]["save_dir"] == "."  # so that the config leads to another run's folder in another run

    (tmp_path / "broken").mkdir()
    monkeypatch.chdir(tmp_path / "broken")
    stop_at(6, *added)
    kept = LOGGED.read_text()
    assert kept.count("\n") > 6
    LOGGED.write_text(kept + kept.splitlines()[-1] + "\n1,2")  # as a kill after the checkpoint leaves it
    small(*added)
    require_same_end(RUN, expected)
    assert rows(LOGGED) == whole


def spec(kind, **arguments):
    return Namespace(class_path=f"lightning.pytorch.loggers.{kind}", init_args=Namespace(**arguments))


class OwnLogger(Logger):
    """Stands for a class of the user's."""


def test_places_are_within_the_runs_folder_unless_they_are_absolute(tmp_path):
    run = tmp_path / "run"
    csv_logger = spec("CSVLogger", save_dir=".", name="lightning_logs", version=None)
    wandb, elsewhere = spec("WandbLogger", save_dir="."), spec("MLFlowLogger", save_dir="/mlruns")
    own = Namespace(class_path=f"{__name__}.OwnLogger", init_args=Namespace(project="x"))
    placed_csv, placed_wandb, same, placed_own = placed([csv_logger, wandb, elsewhere, own], run)
    assert placed_csv.init_args == Namespace(save_dir=str(run), name="csv_logs", version="")
    assert placed_wandb.init_args.save_dir == str(run)
    assert same.init_args.save_dir == "/mlruns"
    assert placed_own == own
    assert csv_logger.init_args.save_dir == "."  # what the config says is left to other runs
    assert [placed(value, run) for value in (None, True, False)] == [None, True, False]


def test_rows_are_kept_rewound_and_widened(tmp_path):
    logger = RunCSVLogger(tmp_path, "", "")
    for step in range(3):
        logger.log_metrics({"a": step}, step)
    assert (logger.rows(), logger.key(tmp_path)) == (3, "metrics.csv")
    resumed = RunCSVLogger(tmp_path, "", "")
    resumed.rewind(2)
    resumed.log_metrics({"b": 7}, 2)
    resumed.finalize("success")
    assert rows(tmp_path / "metrics.csv") == [
        {"a": "0", "b": "", "step": "0"},
        {"a": "1", "b": "", "step": "1"},
        {"a": "", "b": "7", "step": "2"},
    ]
