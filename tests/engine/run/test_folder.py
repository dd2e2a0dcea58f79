"""A run's folder: its names, its lock, its mark of a finished run, and the curves and logs in it, rewound at a resume."""

import errno
import json
import os
import platform
import signal
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger

from project.engine.errors import UserError
from project.engine.run.folder import RunFolder
from project.engine.run.loggers import RunLogger, curve_lengths, place_in_folder, rewind
from tests.distributed.processes import fork, wait
from tests.engine.toy import cases, curve, fit, rows, stop_at


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "runs", "first try")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@cases("name", "", ".", "..", "a/b", "/tmp", "../a", "a/..", "a\nb", "\udcff")
def test_a_name_that_is_not_one_folder_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"(?s)--name .*must be the name of one folder"):
        RunFolder(tmp_path, name)


def test_a_name_that_is_too_long_for_a_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="--name must be at most 255 bytes, got 256 bytes"):
        RunFolder(tmp_path, "é" * 128)


@cases("name", "with space", "Größe", "...", ".hidden", "é" * 127 + "x")
def test_any_other_name_is_a_folder_in_the_root_with_nothing_but_checkpoints_and_a_lock(
    tmp_path, monkeypatch, name
):
    for _ in range(2):
        RunFolder(tmp_path, name).create()
        assert files(tmp_path) == {name, f"{name}/checkpoints", f"{name}/.lock"}
        # a file system without locks is no obstacle
        monkeypatch.setattr(
            "fcntl.lockf", Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
        )


@cases("obstacle", "runs", "runs/first try", "runs/first try/checkpoints")
def test_a_folder_that_cannot_be_made_is_named(tmp_path, run, obstacle):
    (tmp_path / obstacle).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / obstacle).write_text("in the way")
    with pytest.raises(
        UserError, match=r"first try' cannot be written .*--trainer\.default_root_dir"
    ):
        run.create()


@cases(
    "name", "config.yaml", ".metrics.partial.json", ".lock", "checkpoints/last.ckpt", "checkpoints"
)
def test_a_link_that_leads_out_of_a_run_is_not_followed(tmp_path, run, name):
    victim = tmp_path / "victim"
    victim.mkdir() if name == "checkpoints" else victim.write_text("theirs")
    (run.path / name).parent.mkdir(parents=True)
    (run.path / name).symlink_to(victim)
    with pytest.raises(UserError, match=rf"{name}' is no file of the run, or a link"):
        run.create()
    assert victim.is_dir() or victim.read_text() == "theirs"


@cases("name", "config.yaml", "checkpoints/last.ckpt", "events.out.tfevents.1")
def test_a_link_to_itself_and_a_named_pipe_are_refused(run, name):
    path = run.path / name
    path.parent.mkdir(parents=True)
    path.symlink_to(path)
    with pytest.raises(UserError, match=rf"{name}' is no file of the run"):
        run.create()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=rf"{name}' is no file of the run"):
        run.create()


def test_aliases_that_multiply_in_the_config_of_a_run_are_refused(run):
    run.create()
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 6)]
    part = "{class_path: a, init_args: {}}"
    plain = f"monitor: a\nmode: max\nmodel: {part}\ndata: {part}\nseed_everything: "
    run.config.write_text("\n".join(["l0: &l0 [x]", *levels, f"{plain}*l5"]))
    with pytest.raises(UserError, match=r"config\.yaml cannot be read: its aliases multiply"):
        run.changed_options(f"{plain}0")


def test_a_run_is_finished_when_its_metrics_are_written(run):
    metrics = {
        "test": {"accuracy": 0.1 + 0.2, "classes": ["日本", "b"], "counts": [[1, 2], [3, 4]]},
        "val": None,
    }
    run.create()
    for path in (run.best, run.last, run.previous):
        path.write_text("weights")
    run.require_unfinished()
    run.write_metrics(metrics)
    assert json.loads(run.metrics.read_text()) == metrics
    assert files(run.path) == {
        "checkpoints",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "metrics.json",
    }
    for refused in (run.require_unfinished, lambda: run.create()):
        with pytest.raises(UserError, match=r"first try' is finished, its test set measured"):
            refused()


def test_a_folder_in_which_another_process_trains_is_refused_until_that_ends(run):
    reading, writing = os.pipe()

    def hold() -> None:
        run.create()
        os.write(writing, b"held")
        signal.pause()

    holder = fork(hold, {})
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read(4) == b"held"
    for _ in range(2):
        with pytest.raises(
            UserError, match=rf"trained by process {holder.pid} on .*; choose another --name"
        ):
            run.create()
    holder.kill()
    assert wait([holder]) == [-signal.SIGKILL]
    run.create()  # over what the other wrote into the lock
    assert (run.path / ".lock").read_text() == f"process {os.getpid()} on {platform.node()}\n"


def logged(folder: Path, *steps: int) -> RunLogger:
    logger = RunLogger(folder)
    for step in steps:
        logger.log_metrics({"loss": 0.5 * step}, step)
    return logger


def test_what_was_logged_after_a_checkpoint_vanishes(tmp_path):
    logged(tmp_path, 0, 1).finalize("success")
    logger = logged(tmp_path, 2, 3)
    lengths = curve_lengths(Trainer(accelerator="cpu", logger=logger, enable_checkpointing=False))
    assert lengths == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    logger.log_metrics({"loss": 9.0}, 4)
    logger.finalize("success")
    logged(tmp_path, 4, 5).finalize("success")
    assert len(list(tmp_path.iterdir())) == 3
    rewind(tmp_path, lengths)
    assert (files(tmp_path), curve(tmp_path, "loss")) == (
        {*lengths},
        [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)],
    )
    logged(tmp_path, 4).finalize("success")
    assert curve(tmp_path, "loss") == [(step, 0.5 * step) for step in range(5)]
    rewind(tmp_path, {})
    assert not files(tmp_path)


def spec(kind, **arguments):
    return Namespace(
        class_path=f"lightning.pytorch.loggers.{kind}", init_args=Namespace(**arguments)
    )


def test_places_are_within_the_runs_folder_unless_absolute_and_wandb_continues_by_its_name(
    tmp_path,
):
    loggers = [spec("CSVLogger", save_dir=place) for place in (".", "/logs", "s3://bucket/x", None)]
    wandb = [spec("WandbLogger", **options) for options in ({}, {"id": "mine"}, {"version": "v"})]
    place_in_folder(Namespace(logger=loggers + wandb), run := tmp_path / "my run")
    places = [part.init_args.save_dir for part in loggers]
    assert places == [str(run), "/logs", "s3://bucket/x", None]
    assert [part.init_args.get("id") for part in wandb] == ["my-run", "mine", None]
    for value in (None, True, False):
        place_in_folder(Namespace(logger=value), run)


class RecordingLogger(Logger):
    name, version = "own", ""
    settings: ClassVar[list[dict[str, Any]]] = []
    rows: ClassVar[list[dict[str, Any]]] = []

    def log_hyperparams(self, params, *args, **kwargs) -> None:
        self.settings.append(params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(
            {
                "step": step,
                **{name: value for name, value in metrics.items() if "per_sec" not in name},
            }
        )


def test_loggers_of_the_users_get_settings_once_and_each_metric_once(workplace):
    flags = [f"--trainer.logger={__name__}.RecordingLogger", "--trainer.logger+=CSVLogger"]
    flags += ["--trainer.profiler=SimpleProfiler", "--trainer.profiler.filename=times"]
    flags += ["--trainer.plugins=AsyncCheckpointIO", "--model.optimizer.lr=0.2"]
    settings, whole = RecordingLogger.settings, RecordingLogger.rows
    fit(*flags, "--trainer.default_root_dir=whole")
    assert "FIT Profiler Report" in Path("whole/run/fit-times.txt").read_text()
    assert (
        "whole/run" not in Path("whole/run/config.yaml").read_text()
    )  # so that another run can use it
    assert len(settings) == 1
    assert {
        "model.optimizer.lr": 0.2,
        "data.batch_size": 16,
        "trainer.max_epochs": 2,
    }.items() <= settings[0].items()
    assert all(isinstance(value, bool | int | float | str) for value in settings[0].values())
    (by_csv,) = map(rows, Path("whole/run").glob("lightning_logs/*/metrics.csv"))
    for tag in ("train/loss", "val/accuracy", "test/accuracy"):
        logged: list[Any] = [
            (row["step"], pytest.approx(row[tag], rel=1e-6)) for row in whole if tag in row
        ]
        assert curve(Path("whole/run"), tag) == logged
        assert [(int(row["step"]), float(row[tag])) for row in by_csv if row[tag]] == logged
    expected = list(whole)
    whole.clear()
    stop_at(6, *flags)
    fit(*flags)
    assert (len(settings), whole) == (2, expected)
