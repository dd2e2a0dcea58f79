"""Where output is no terminal, progress is a line for each epoch or minute, on standard error."""

import re
import sys
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar

from project.callbacks import ProgressLines
from project.fit import FitCLI
from tests.conftest import TINY_DATA, TINY_TRAINER, as_in_a_terminal
from tests.distributed.processes import succeed
from tests.distributed.tiny import TINY
from tests.small import small, stop_at

EPOCH = re.compile(
    r"epoch (\d+) of (\d+), step (\d+), loss \d+\.\d{4}, accuracy \d+\.\d\d%, validation loss \d+\.\d{4}, validation"
    r" accuracy \d+\.\d\d%, [\d,.]+ images/s, (.+) left"
)
BARS = ["--trainer.enable_progress_bar=true"]


class Clock:
    """Time that passes while it is looked at."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def epochs(written: str) -> list[tuple[str, ...]]:
    """The numbers in lines of epochs."""
    return [found.groups() for found in map(EPOCH.fullmatch, written.splitlines()) if found]


def test_an_epoch_is_a_line(workplace, capsys):
    small(*BARS, callbacks=[ProgressLines(Clock(0.001))])
    written = capsys.readouterr().err
    assert epochs(written) == [("1", "2", "4", "0 s"), ("2", "2", "8", "0 s")]
    assert len(re.findall(r"^test: [\d,]+ images/s$", written, re.M)) == 1
    assert written.count("\n") == 3 + 2  # before the first epoch, what is trained and with which settings


def test_the_monitored_metric_is_in_the_line(workplace, capsys):
    small(*BARS, "--monitor=val/f1", callbacks=[ProgressLines()])
    assert len(re.findall(r"^epoch \d of 2, .* val/f1 \d\.\d{4}, ", capsys.readouterr().err, re.M)) == 2


def test_a_long_epoch_is_a_line_a_minute(workplace, capsys):
    small(*BARS, callbacks=[ProgressLines(Clock(31.0))])  # a look at each batch, and one at each line
    written = capsys.readouterr().err
    steps = [int(step) for step in re.findall(r"^epoch \d of 2, step (\d),", written, re.M)]
    assert steps == [2, 4, 4, 6, 8, 8]  # after a minute of two batches, and at the end of each epoch
    assert all(f"epoch {1 + (step > 4)} of 2, step {step}," in written for step in steps)


def test_a_resumed_run_counts_from_its_start(workplace, capsys):
    stop_at(6)
    capsys.readouterr()
    small(*BARS, callbacks=[ProgressLines(Clock(0.001))])
    assert epochs(capsys.readouterr().err) == [("2", "2", "8", "0 s")]


def test_the_time_that_is_left_is_that_of_as_many_batches(workplace, capsys):
    small(*BARS, "--trainer.max_epochs=4", callbacks=[ProgressLines(clock := Clock(10.0))])
    first, second, third, last = (found[3] for found in epochs(capsys.readouterr().err))
    assert clock.now > 60
    assert last == "0 s"
    assert all("min" in left for left in (first, second, third))


def test_a_validation_is_said_in_its_own_epoch(workplace, capsys):
    small(*BARS, "--trainer.max_epochs=4", "--trainer.check_val_every_n_epoch=2", callbacks=[ProgressLines()])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert ["validation" in line for line in lines] == [False, True, False, True]


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


@pytest.mark.slow
def test_a_redirected_run_writes_few_lines(tmp_path):
    options = [option for option in TINY if "progress" not in option]
    found = succeed([sys.executable, "-m", "project.fit", *options, "--trainer.max_epochs=2", "--name=run"], tmp_path)
    assert [line[:2] for line in epochs(found.err)] == [("1", "2"), ("2", "2")]
    assert found.err.count("\n") == 3 + 2
    assert "\r" not in found.err + found.out
    assert found.out.replace("downloading\n", "").startswith("\n  ")  # the table of results
    assert "images/s" not in found.out
