"""Without a terminal, progress is a line for each epoch or minute, on standard error; bars of Lightning take its place."""

import re
from typing import Any

import pytest
from lightning.pytorch.callbacks import LambdaCallback, ProgressBar, TQDMProgressBar

from project.callbacks import ProgressLines
from project.engine.run.progress import Progress
from project.fit import FitCLI
from tests.conftest import TINY_DATA, TINY_TRAINER, as_in_a_terminal
from tests.small import small, stop_at

EPOCH = re.compile(
    r"^epoch (\d+) of (\d+), step (\d+), loss \d+\.\d{4}, accuracy \d+\.\d\d%, validation loss \d+\.\d{4}, validation"
    r" accuracy \d+\.\d\d%(?:, val/f1 \d\.\d{4})?, [\d,.]+ images/s, (.+) left$",
    re.MULTILINE,
)
BARS = ["--trainer.enable_progress_bar=true"]


class Clock:
    """Time that passes while it is looked at."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def pass_by(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    def __call__(self) -> float:
        return self.pass_by(self.step)


def test_an_epoch_is_a_line_of_results_speed_and_remaining_time(workplace, capsys):
    small(*BARS, "--monitor=val/f1", callbacks=[ProgressLines(Clock(0.001))])
    written = capsys.readouterr().err
    assert EPOCH.findall(written) == [("1", "2", "4", "0 s"), ("2", "2", "8", "0 s")]
    assert len(re.findall(r"^test: [\d,]+ images/s$", written, re.M)) == 1
    assert written.count("\n") == 3 + 2  # before the first epoch, what is trained and with which settings


def test_a_long_epoch_and_a_long_test_are_a_line_a_minute(workplace, capsys):
    small(*BARS, "--data.test_size=80", callbacks=[ProgressLines(Clock(31.0))])  # a look at each batch and each line
    written = capsys.readouterr().err
    steps = re.findall(r"^epoch (\d) of 2, step (\d),", written, re.M)
    assert steps == [("1", "2"), ("1", "4"), ("2", "6"), ("2", "8")]  # once where an epoch ends
    assert re.findall(r"^test: batch (\d) of 5, 0\.\d images/s, .* left$", written, re.M) == ["2", "4"]


def test_a_resumed_run_counts_from_its_start_and_validations_are_named_in_their_own_epoch(workplace, capsys):
    options = [*BARS, "--trainer.max_epochs=4", "--trainer.check_val_every_n_epoch=2"]
    stop_at(6, *options)
    capsys.readouterr()
    small(*options, callbacks=[ProgressLines(Clock(1.0))])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert ["validation" in line for line in lines] == [True, False, True]
    assert [line.endswith(", 0 s left") for line in lines] == [False, False, True]


@pytest.mark.parametrize("every", ["2", "1.0"])
def test_validations_leave_the_speed_as_it_is(workplace, capsys, every):
    clock = Clock(0.0)
    batch, validation = (lambda *_, seconds=seconds: clock.pass_by(seconds) for seconds in (1, 900))
    watch = LambdaCallback(on_train_batch_start=batch, on_validation_epoch_start=validation)
    options = [*BARS, f"--trainer.val_check_interval={every}", "--data.batch_size=16"]
    small(*options, callbacks=[ProgressLines(clock), watch])
    lines = [line for line in capsys.readouterr().err.splitlines() if re.match("epoch . of 2, step [48],", line)]
    assert lines
    assert all(", 16 images/s," in line for line in lines)


def bars(*options: str) -> list[type[Any]]:
    with as_in_a_terminal():
        trainer: Any = FitCLI([*TINY_DATA, *TINY_TRAINER, *options]).trainer
    return [type(callback) for callback in trainer.callbacks if isinstance(callback, ProgressBar)]


def test_what_the_user_says_of_progress_bars_wins(workplace, monkeypatch):
    assert bars() == [ProgressLines]
    assert bars("--trainer.enable_progress_bar=false") == []
    assert bars("--trainer.callbacks=TQDMProgressBar") == [TQDMProgressBar]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert ProgressLines not in bars()


def test_looking_at_many_files_is_a_line_a_minute_where_nobody_watches(monkeypatch, capsys):
    for seconds, visible in ((0.5, True), (2.0, True), (100.0, False)):  # an image
        clock = Clock(seconds)
        for place in ("tqdm.std.time", "project.engine.run.progress._clock"):  # of the bar, too
            monkeypatch.setattr(place, clock)
        progress = Progress(100, text="checking images", visible=visible)
        for _ in range(100):
            progress.advance(1)
        progress.close()
        if seconds == 2.0:
            first, *others = capsys.readouterr().err.splitlines()
            assert first == "checking images: 30 of 100 images, 0.5 images/s, 2 min 20 s left"
            assert len(others) == 2
        assert capsys.readouterr() == ("", "")
