"""The command in this process, and a folder of images to look at."""

import json

import pytest

from project import check_data as command
from tests.engine.loading.image_files import write_folder

CLASSES = {"daisy": 12, "rose": 10, "向日葵": 8}


def run(monkeypatch, *args):
    """The exit code of the command."""
    monkeypatch.setattr("sys.argv", ["check_data", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        command.main()
    return stop.value.code


@pytest.fixture
def inspected(tmp_path, monkeypatch, capsys):
    """Runs the command on a folder; gives the exit code, its JSON and what it printed."""

    def inspect(root, *args):
        code = run(monkeypatch, root, f"--output={tmp_path / 'found.json'}", *args)
        return code, json.loads((tmp_path / "found.json").read_text()), capsys.readouterr()

    return inspect


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "my images", CLASSES)


def rows(text):
    return [line.split() for line in text.splitlines()]
