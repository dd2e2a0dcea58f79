"""Files of rows: what other programs read in them, and how much of them an interruption costs."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from project.engine.errors import UserError
from project.engine.run.rows import RowWriter, resume_rows

COLUMNS = ["path", "label", "confidence", "correct", "error"]
ODD = ["a,b", 'say "cheese"', "two\nlines", "carriage\rreturn", "ünï 花", "", " ", "-1", "\\x", "line\u2028separator"]
CONFIDENCES = [float(np.float32(value)) for value in (0.1, 1 / 3, 1e-12, 1.0, 0.0)]
ROWS = [
    dict(zip(COLUMNS, (f"{number} {odd}", odd or None, CONFIDENCES[number % 5], number % 2 == 0, None), strict=True))
    for number, odd in enumerate(ODD)
]


def write(path: Path, rows=ROWS) -> bytes:
    with open(path, "wb") as file:
        writer = RowWriter(file, COLUMNS, path.suffix)
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
    row = ROWS[0] | {"confidence": float("nan")}
    assert json.loads(write(tmp_path / "rows.jsonl", [row]))["confidence"] is None


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_file_is_continued_wherever_it_was_cut_off(tmp_path, ending):
    whole, cut = write(tmp_path / f"rows{ending}"), tmp_path / f"cut{ending}"
    counts = set()
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        with open(cut, "r+b") as file:
            done = len(resume_rows(file, COLUMNS, ending))
            RowWriter(file, COLUMNS, ending).write(ROWS[done:])
        assert cut.read_bytes() == whole
        counts.add(done)
    assert counts == set(range(len(ROWS) + 1))


@pytest.mark.parametrize("line", ["", "5", "null", "{}", '{"path": "x"}', "x,y"])
@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_line_of_another_kind_is_refused_and_the_file_stays(tmp_path, ending, line):
    path = tmp_path / f"rows{ending}"
    write(path)
    content = path.read_bytes() + f"{line}\n".encode()
    path.write_bytes(content)
    with open(path, "r+b") as file, pytest.raises(UserError, match="has other rows or columns"):
        resume_rows(file, COLUMNS, ending)
    assert path.read_bytes() == content
