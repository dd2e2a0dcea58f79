"""Trainings of scripts that do several: each is a run, which is trained once, and by the options that the script asks for."""

import json
import shlex
import sys
from pathlib import Path

from lightkeeper.cli import run_apart
from lightkeeper.exact import UserError, note


def train(run: Path, options: list[str]) -> None:
    """Trains or resumes a run by ``project.fit``, unless it is finished; if that fails, ends as it did.

    Raises:
        UserError: The run was finished with other options.
    """
    command = ["-m", "project.fit", *options]
    command += [f"--trainer.default_root_dir={run.parent}", f"--name={run.name}"]
    if not (run / "metrics.json").exists():
        try:  # which ends this process itself where a signal asks it to
            if code := run_apart([sys.executable, *command]):
                sys.exit(code)
        except SystemExit:
            if run.exists():
                note(f"'{run}' is not finished; the same command of this script goes on with it")
            raise
    elif _words(command) != _words(trained := _command_of(run)):
        raise UserError(
            f"'{run}' was trained with other options ({shlex.join(trained)}); give the same, or"
            " another NAME"
        )


def _command_of(run: Path) -> list[str]:
    """Returns the command that finished a run, without the program."""
    record = run / "run.json"
    return shlex.split(json.loads(record.read_text())["command"])[1:] if record.is_file() else []


def _words(command: list[str]) -> list[str]:
    """Splits options from their values, as a run's record joins them."""
    return [part for word in command for part in word.split("=")]
