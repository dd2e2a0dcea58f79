"""Without a terminal, progress is a line for each epoch or minute, on standard error; bars of Lightning take its place."""

import re
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar

from project.callbacks import ProgressLines
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

    def __call__(self) -> float:
        self.now += self.step
        return self.now


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


class OnTheClock(Callback):
    """A batch takes a second, a validation a quarter of an hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_train_batch_start(self, *_: Any) -> None:
        self._clock.now += 1

    def on_validation_epoch_start(self, *_: Any) -> None:
        self._clock.now += 900


@pytest.mark.parametrize("every", ["2", "1.0"])
def test_validations_leave_the_speed_as_it_is(workplace, capsys, every):
    clock = Clock(0.0)
    watched = [ProgressLines(clock), OnTheClock(clock)]
    small(*BARS, f"--trainer.val_check_interval={every}", "--data.batch_size=16", callbacks=watched)
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
