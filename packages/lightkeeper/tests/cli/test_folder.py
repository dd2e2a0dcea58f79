"""A run's folder: its names, its lock, its mark of a finished run, and what loggers leave in it."""

import errno
import json
import os
import platform
import re
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from jsonargparse import Namespace
from lightkeeper.cli._folder import RunFolder, read_metrics
from lightkeeper.cli._loggers import place_in_folder
from lightkeeper.cli._training import is_of_folder
from lightkeeper.exact import UserError
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import Logger

from tests.processes import fork, wait, wait_until
from tests.toy import RUN, cases, curve, fit, one_line, read_json, stop_at


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "runs", "first try")


@cases("name", "", ".", "..", "a/b", "/tmp", "../a", "a/..", "a\nb", "\udcff")
def test_a_name_that_is_not_one_folder_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"name: must be the name of one folder"):
        RunFolder(tmp_path, name)


@cases("name", "with space", "Größe", "...", ".hidden", "é" * 127 + "x")
def test_any_other_name_is_a_folder_in_the_root_with_nothing_but_checkpoints_and_a_lock(
    tmp_path, monkeypatch, capsys, name
):
    without_locks = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    for _ in range(2):  # a file system without locks is no obstacle
        RunFolder(tmp_path, name).create()
        place = tmp_path / name
        assert {*tmp_path.rglob("*")} == {place, place / "checkpoints", place / ".lock"}
        monkeypatch.setattr("fcntl.lockf", without_locks)
    assert capsys.readouterr().err.startswith("there are no file locks for ")


@cases(
    "name", "config.yaml", ".metrics.partial.json", ".lock", "checkpoints/last.ckpt", "checkpoints"
)
@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "loop", "pipe"])
def test_what_leads_out_of_a_run_or_nowhere_is_refused(tmp_path, run, name, kind):
    file, path = tmp_path / "victim", run.path / name
    file.write_text("theirs")
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link to a file": file, "link to a folder": tmp_path, "loop": path}[kind])
    with pytest.raises(UserError, match=r"is no file of the run"):
        run.create()
    assert [*tmp_path.glob("[!r]*")] == [file]
    assert file.read_text() == "theirs"


def test_a_root_that_is_a_link_to_nowhere_is_named(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "not_mounted")
    with pytest.raises(UserError, match="runs' is no folder, but perhaps a link to a disk"):
        RunFolder(tmp_path / "runs", "first").create()


def test_who_shares_a_folder_can_resume_in_it(run):
    before = os.umask(0o002)
    try:
        run.create()
    finally:
        os.umask(before)
    assert (run.path / ".lock").stat().st_mode & 0o777 == 0o664  # as config.yaml and others


def test_a_folder_in_which_another_process_trains_is_refused_until_that_ends(run, tmp_path):
    def hold() -> None:
        run.create()
        signal.pause()

    lock = run.path / ".lock"
    holder = fork(hold, {}, tmp_path / "log")
    wait_until(lambda: lock.exists() and lock.read_text(), tmp_path)
    for _ in range(2):
        with pytest.raises(
            UserError, match=rf"trained by process {holder.pid} on .*; choose another --name"
        ):
            run.create()
    holder.kill()
    assert wait([holder]) == [-signal.SIGKILL]
    run.create()  # over what the other wrote into the lock
    assert lock.read_text() == f"process {os.getpid()} on {platform.node()}\n"
    run.write_metrics({}, {})
    with pytest.raises(UserError, match=r"first try' is finished, its test set measured"):
        run.create()  # as where another process has just finished it


def test_what_a_kill_behind_the_mark_of_the_end_has_left_is_removed_when_the_run_is_met_again(
    run, tmp_path
):
    victim = tmp_path / "other" / "previous.ckpt"
    victim.parent.mkdir()
    run.create()
    for file in (victim, run.previous, run.last, run.metrics):
        file.touch()
    with pytest.raises(UserError, match="is finished"):
        run.require_unfinished()
    assert {path.name for path in run.path.rglob("*")} == {
        "checkpoints",
        "last.ckpt",
        "metrics.json",
    }
    shutil.rmtree(run.checkpoints)
    run.checkpoints.symlink_to(victim.parent)  # as in a folder from elsewhere
    with pytest.raises(UserError):
        run.require_unfinished()
    assert victim.exists()


def spec(kind, **arguments):
    return Namespace(
        class_path=f"lightning.pytorch.loggers.{kind}", init_args=Namespace(**arguments)
    )


def test_places_are_within_the_runs_folder_unless_absolute_and_wandb_continues_by_its_name(
    tmp_path,
):
    loggers = [spec("CSVLogger", save_dir=place) for place in (".", "/logs", "s3://bucket/x", None)]
    wandb = [spec("WandbLogger", **options) for options in ({}, {"id": "mine"}, {"version": "v"})]
    mlflow = [spec("MLFlowLogger", run_name=name) for name in (None, "mine")]
    chosen = Namespace(logger=loggers + wandb + mlflow)
    place_in_folder(chosen, run := tmp_path / "my run")
    places = [part.init_args.save_dir for part in loggers]
    assert places == [str(run), "/logs", "s3://bucket/x", None]
    assert [part.init_args.get("id") for part in wandb] == ["my-run", "mine", None]
    assert [part.init_args.run_name for part in mlflow] == ["my run", "mine"]


@cases("damage", Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:60]))
def test_curves_that_are_lost_while_a_run_is_stopped_are_missed_when_it_resumes(
    workplace, capsys, damage
):
    stop_at(6)
    (events,) = RUN.glob("events.out.*")
    damage(events)
    capsys.readouterr()
    fit()
    said = capsys.readouterr().err
    assert said.count(f"'{events}' is lost or cut, and with it curves of before") == 1
    assert [step for step, _ in curve(RUN, "train/loss")] == [6, 7]


class RecordingLogger(Logger):
    name, version = "own", ""
    settings: ClassVar[list[dict[str, Any]]] = []
    rows: ClassVar[list[dict[str, Any]]] = []

    def log_hyperparams(self, params, *args, **kwargs) -> None:
        self.settings.append(params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        kept = {name: value for name, value in metrics.items() if "per_sec" not in name}
        self.rows.append({"step": step, **kept})


def test_loggers_of_the_users_get_settings_once_and_each_metric_once(workplace):
    flags = [
        f"--trainer.logger={__name__}.RecordingLogger",
        *("--trainer.logger+=CSVLogger", "--trainer.logger.name=csv"),
        *("--trainer.profiler=SimpleProfiler", "--trainer.profiler.filename=times"),
        "--model.optimizer.lr=0.2",
    ]
    settings, recorded = RecordingLogger.settings, RecordingLogger.rows
    fit(*flags, "--trainer.default_root_dir=whole")
    whole = Path("whole/run")
    assert "FIT Profiler Report" in (whole / "fit-times.txt").read_text()
    assert "whole/run" not in (whole / "config.yaml").read_text()  # so that another run can use it
    (options,) = settings
    assert (options["model.optimizer.lr"], options["data.batch_size"]) == (0.2, 16)
    assert all(isinstance(value, bool | int | float | str) for value in options.values())
    assert len([*whole.glob("csv/*/metrics.csv")]) == 1
    for tag in ("train/loss", "val/accuracy", "test/accuracy"):
        points: list[Any] = [
            (row["step"], pytest.approx(row[tag], rel=1e-6)) for row in recorded if tag in row
        ]
        assert curve(whole, tag) == points
    expected = list(recorded)
    recorded.clear()
    stop_at(6, *flags)
    fit(*flags)
    assert (len(settings), recorded) == (2, expected)


def test_a_dry_run_leaves_nothing_behind(workplace):
    fit("--trainer.fast_dev_run=true")
    assert list(workplace.iterdir()) == []


def moves(trainer: Trainer, *_: object) -> None:
    if trainer.global_step == 3:
        RUN.rename("runs/moved")


def kills_a_worker(trainer: Trainer, *_: object) -> None:
    if trainer.global_step == 3:
        loader: Any = trainer.train_dataloader
        os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)


@cases(
    "hook options line",
    (moves, [], "'runs/run' was moved or removed while the run trained"),
    (
        kills_a_worker,
        ["--data.num_workers=1", "--data.size=640"],
        r"a process that loads data has died, .*; to resume, run python -m tests.fit with the same",
    ),
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
def test_a_run_that_loses_its_folder_or_a_worker_says_how_it_resumes(
    workplace, capsys, hook, options, line
):
    callback = LambdaCallback(on_train_batch_start=hook)
    said = one_line(lambda: fit(*options, callbacks=[callback]), capsys)
    assert re.search(line, said)


def test_a_file_that_ones_own_code_does_not_find_is_a_bug_of_it(workplace):
    callback = LambdaCallback(on_train_batch_start=lambda *_: Path("absent").read_text())
    with pytest.raises(FileNotFoundError, match="absent"):
        fit(callbacks=[callback])
    for file, folder in (("absent", Path("runs/gone")), (f"{RUN}/absent", RUN)):  # RUN is there
        assert not is_of_folder(FileNotFoundError(2, "No such file", file), folder)


def test_a_run_lasts_as_long_as_it_did_whatever_the_clock_says(workplace, monkeypatch):
    for module, seconds in (("_fit", 400), ("_training", 4000)):  # where it begins and ends
        clock = SimpleNamespace(monotonic=lambda seconds=seconds: seconds)
        monkeypatch.setattr(f"lightkeeper.cli.{module}.time", clock)
    fit()
    assert read_json(RUN / "run.json")["duration"] == "1:00:00"


def test_metrics_that_may_not_be_read_are_not_called_absent(tmp_path, monkeypatch):
    (tmp_path / "metrics.json").write_text("{}")
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError("not yours")))
    with pytest.raises(PermissionError, match="not yours"):
        read_metrics(tmp_path)


def test_a_run_whose_metrics_cannot_be_written_says_how_it_resumes(workplace, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        patch.setattr(RunFolder, "write_metrics", full)
        said = one_line(fit, capsys)
    assert "to resume, run python -m tests.fit with the same options and --name run" in said
    fit()
    assert read_metrics(RUN)["test"]


@cases(
    "changed",
    {"test": []},
    {"test": {"correct": "x"}},
    {"test": {"loss": [1]}},
    {"val": 3},
    {"class_names": None},
    {"images": [None]},
    {"selection": True},
)
def test_metrics_of_other_types_are_no_finished_run(tmp_path, changed):
    sound = {"test": {"accuracy": 0.5, "per_class": []}, "val": None, "epoch": 1}
    for metrics in (sound, sound | changed):
        (tmp_path / "metrics.json").write_text(json.dumps(metrics))
        with nullcontext() if metrics == sound else pytest.raises(UserError, match="a damaged one"):
            assert read_metrics(tmp_path) == metrics
