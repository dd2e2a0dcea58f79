"""What a process starts ends with it, once it has saved."""

import os
import signal
import sys
from pathlib import Path

import pytest
from lightkeeper.cli._apart import run_apart
from lightkeeper.exact._processes import EXIT_CODE

from tests.processes import fork, wait, wait_until
from tests.toy import cases

SAVES = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1], "begun").touch()
time.sleep(100)
"""
STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def command(place: Path) -> list[str]:
    """A command that takes a while to save when it is asked to stop, as a training does."""
    return [sys.executable, "-c", SAVES, str(place)]


@cases("number code", *((number, EXIT_CODE) for number in STOPS), (signal.SIGKILL, -9))
def test_a_command_saves_and_ends_when_the_process_that_runs_it_is_ended(tmp_path, number, code):
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent was killed")
    parent = fork(lambda: run_apart(command(tmp_path)), {}, tmp_path / "log")
    wait_until((tmp_path / "begun").exists, tmp_path)
    os.kill(parent.pid or 0, number)
    assert wait([parent]) == [code]
    if number == signal.SIGKILL:
        wait_until((tmp_path / "saved").exists, tmp_path)
    assert (tmp_path / "saved").exists()


def test_under_nohup_a_command_outlives_the_terminal_and_is_stopped_when_it_is_no_longer_needed(
    tmp_path,
):
    def work() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        code = run_apart(command(tmp_path), is_done=(tmp_path / "enough").exists)
        assert code == EXIT_CODE

    parent = fork(work, {}, tmp_path / "log")
    wait_until((tmp_path / "begun").exists, tmp_path)
    os.kill(parent.pid or 0, signal.SIGHUP)
    (tmp_path / "enough").touch()
    assert wait([parent]) == [0]


def test_a_command_is_not_left_behind_by_an_error_of_what_watches_it(tmp_path):
    begun = tmp_path / "begun"
    with pytest.raises(ZeroDivisionError):
        run_apart(command(tmp_path), is_done=lambda: begun.exists() and bool(1 / 0))
    assert (tmp_path / "saved").exists()


@cases("script code", ("exit 0", 0), ("exit 2", 2), ("kill -TERM $$", 75), ("kill -KILL $$", -9))
def test_a_command_that_a_signal_has_stopped_is_told_from_one_that_has_failed(script, code):
    assert run_apart(["sh", "-c", script]) == code
