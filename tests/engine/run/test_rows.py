"""Files of rows: what other programs read in them, and how much of them a kill costs."""

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from project.engine.errors import UserError
from project.engine.run.rows import finished_rows, partial_path, partial_paths, writing_rows

ROOT = Path(__file__).parents[3]
COLUMNS = {"path": str, "label": str, "confidence": float, "correct": bool, "error": str}
ODD = ["a,b", 'say "cheese"', "two\nlines", "carriage\rreturn", "ünï 花", "", " ", "-1", "\\x"]
CONFIDENCES = [float(np.float32(value)) for value in (0.1, 1 / 3, 1e-12, 1.0, 0.0)]
ROWS = [
    {
        "path": f"{number} {odd}",
        "label": odd or None,
        "confidence": CONFIDENCES[number % len(CONFIDENCES)],
        "correct": number % 2 == 0,
        "error": None,
    }
    for number, odd in enumerate(ODD)
]


def write(path: Path, rows=ROWS, **options) -> bytes:
    with writing_rows("--output", str(path), COLUMNS, **options) as writer:
        writer.write(rows[:4])
        writer.write(rows[4:])
    return path.read_bytes()


def test_pythons_csv_reads_what_was_written(tmp_path):
    write(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["path"] for row in found] == [row["path"] for row in ROWS]
    assert [row["label"] for row in found] == ODD
    assert [np.float32(row["confidence"]) for row in found] == [row["confidence"] for row in ROWS]
    assert [json.loads(row["correct"]) for row in found] == [row["correct"] for row in ROWS]


def test_json_lines_hold_every_value(tmp_path):
    found = [json.loads(line) for line in write(tmp_path / "rows.jsonl").decode().split("\n")[:-1]]
    assert [{**row, "confidence": float(np.float32(row["confidence"]))} for row in found] == ROWS
    assert all(len(str(row["confidence"])) < 14 for row in found)  # of the 17 digits of a float64 half mean nothing


def test_parquet_has_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write(tmp_path / "rows.parquet")
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.to_pylist() == ROWS
    assert [str(kind) for kind in table.schema.types] == ["string", "string", "float", "bool", "string"]


def test_what_is_not_finite_is_no_number(tmp_path):
    row = ROWS[0] | {"confidence": float("nan")}
    assert json.loads(write(tmp_path / "rows.jsonl", [row]))["confidence"] is None


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_rows_are_found_again_wherever_a_file_is_cut_off(tmp_path, ending):
    whole, cut = write(tmp_path / f"rows.{ending}"), tmp_path / "cut"
    every = list(finished_rows(tmp_path / f"rows.{ending}", f".{ending}", COLUMNS))
    assert [row.values["path"] for row in every] == [row["path"] for row in ROWS]
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        assert list(finished_rows(cut, f".{ending}", COLUMNS)) == [row for row in every if row.end <= size]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_file_that_is_continued_is_the_same_to_the_byte(tmp_path, ending):
    whole, path = write(tmp_path / f"rows.{ending}"), tmp_path / f"again.{ending}"
    ends = [row.end for row in finished_rows(tmp_path / f"rows.{ending}", f".{ending}", COLUMNS)]
    for done in range(len(ROWS) + 1):
        begin = ends[done - 1] if done else 0
        partial_path(str(path)).write_bytes(whole[:begin] + b"remains")
        assert write(path, ROWS[done:], begin=begin) == whole


def interrupt(writer):
    writer.write(ROWS)
    raise KeyError


@pytest.mark.parametrize(("ending", "continued"), [("csv", True), ("csv", False), ("parquet", True)])
def test_a_file_appears_whole_or_not_at_all(tmp_path, ending, continued):
    path = tmp_path / f"rows.{ending}"
    path.write_text("before")
    partial = partial_path(str(path), "key") if continued else None
    with pytest.raises(KeyError), writing_rows("--output", str(path), COLUMNS, partial) as writer:
        interrupt(writer)
    assert path.read_text() == "before"
    assert bool(partial_paths(str(path))) == (ending == "csv" and continued)


OTHER = """
import os, sys
from project.engine.run.rows import writing_rows

with writing_rows("--output", "rows.csv", {"path": str}):
    if sys.argv[1:] and os.fork():
        os._exit(9)  # killed, while a process that it has started lives on
    print("ready", flush=True)
    sys.stdin.read()
    if sys.argv[1:]:
        os._exit(0)
"""


def other_command(place, *args):
    """A process that has the file open until its standard input ends."""
    command = [sys.executable, "-c", OTHER, *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_two_commands_do_not_write_one_file(tmp_path):
    with (
        other_command(tmp_path) as other,
        pytest.raises(UserError, match="another process writes"),
        writing_rows("--output", str(tmp_path / "rows.csv"), COLUMNS),
    ):
        pass
    assert other.returncode == 0


def test_what_another_command_finishes_meanwhile_stays_whole(tmp_path, monkeypatch):
    path, partial = tmp_path / "rows.csv", tmp_path / "rows.csv.partial"
    partial.write_text("whole")
    monkeypatch.setattr("fcntl.lockf", lambda *_: partial.rename(path))  # between opening and locking
    with (
        pytest.raises(UserError, match="another process writes"),
        writing_rows("--output", str(path), COLUMNS),
    ):
        pass
    assert path.read_text() == "whole"


def test_what_a_killed_command_has_started_keeps_nobody_from_the_file(tmp_path):
    with other_command(tmp_path, "killed") as other:
        other.wait()
        write(tmp_path / "rows.csv")
    assert other.returncode == 9


@pytest.mark.parametrize("name", ["no/folder.csv", "folder.csv", "rows.xlsx", "rows"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, name):
    (tmp_path / "folder.csv.partial").mkdir()
    with (
        pytest.raises(UserError, match=r"^--output[^\n]+(cannot be written|must end with)[^\n]+$"),
        writing_rows("--output", str(tmp_path / name), COLUMNS),
    ):
        pass


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_disk_without_room_is_one_line(tmp_path, ending):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(UserError, match=r"^--output: '.*' cannot be written \(File too large\); resume$"):
            write(tmp_path / f"rows.{ending}", advice="; resume")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_parquet_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with (
        pytest.raises(UserError, match="pip install pyarrow"),
        writing_rows("--output", str(tmp_path / "rows.parquet"), COLUMNS),
    ):
        pass
    assert not list(tmp_path.iterdir())
