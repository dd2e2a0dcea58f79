"""The rows of predictions that a file has already, wherever it was cut off."""

import csv
import io
import subprocess
import sys

import pytest
from lightkeeper.cli._predict import _number, resume_rows
from lightkeeper.exact import UserError

HEADER = ["path", "label", "confidence", "error"]
STRANGE = ['line\nbreak, "caf\\xe9".png', "daisy", "0.25", ""]
TABLE = [STRANGE, *([f"{number}.png", "rose", "0.5", ""] for number in range(11))]


def test_whole_rows_are_kept_wherever_a_file_was_cut_off_as_on_a_full_disk(tmp_path):
    out = tmp_path / "rows.csv"
    csv.writer(text := io.StringIO(newline=""), lineterminator="\n").writerows([HEADER, *TABLE])
    whole = text.getvalue().encode()
    counts = set()
    for size in range(len(whole) + 1):
        out.write_bytes(whole[:size])
        done = resume_rows(out, HEADER)
        assert done == TABLE[: len(done)]
        assert whole.startswith(out.read_bytes())
        counts.add(len(done))
    assert counts == {*range(13)}


@pytest.mark.parametrize("text", ["my only note", "x" * 200_000, "path,label\n"])
def test_a_file_of_other_rows_is_refused_and_stays(tmp_path, text):
    (out := tmp_path / "rows.csv").write_text(text)
    with pytest.raises(UserError, match="has other rows or columns"):
        resume_rows(out, HEADER)
    assert out.read_text() == text


def test_confidences_are_compared_as_numbers():
    assert sorted(["", "0.5", "9e-05", "nobody"], key=_number)[:2] == ["9e-05", "0.5"]


def test_a_file_that_another_process_writes_is_not_replaced_under_it(tmp_path):
    (out := tmp_path / "rows.csv").write_text("path,label,confidence,error\na.png,rose,0.5,\n")
    hold = f"import fcntl; file = open({str(out)!r}, 'a'); fcntl.lockf(file, fcntl.LOCK_EX); "
    command = [sys.executable, "-c", f"{hold}print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        inode = out.stat().st_ino
        with pytest.raises(UserError, match="another process is writing"):
            resume_rows(out, HEADER)
        assert out.stat().st_ino == inode
        other.communicate(b"\n")
    assert resume_rows(out, HEADER) == [["a.png", "rose", "0.5", ""]]
