"""Commands continue where nobody reads their output, print any name on any terminal, and end quietly by Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from project.terminal import lasting
from tests.distributed.processes import environment


def test_a_closed_pipe_is_no_error():
    reading, writing = os.pipe()
    with open(writing, "w") as pipe:
        stream = lasting(pipe)
        stream.write("read\n")
        stream.flush()
        assert os.read(reading, 100) == b"read\n"
        os.close(reading)
        for _ in range(3):
            stream.write("nobody reads this\n" * 10_000)
            stream.flush()


def test_characters_that_an_encoding_lacks_are_spelt_out():
    reading, writing = os.pipe()
    with open(writing, "w", encoding="ascii") as pipe:
        stream = lasting(pipe)
        stream.write("g\N{LATIN SMALL LETTER A WITH DIAERESIS}nse \udcff\n")
        stream.flush()
        assert os.read(reading, 100) == b"g\\xe4nse \\udcff\n"
    os.close(reading)


def start(cwd: Path, script: str) -> subprocess.Popen[str]:
    """Python in which ``project`` is imported as by ``python -m project.fit``."""
    lines = f"import sys; sys.argv = ['-m']; import project; {script}"
    return subprocess.Popen(
        [sys.executable, "-c", lines],
        env=environment(),
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_ctrl_c_during_imports_is_one_line(tmp_path):
    process = start(tmp_path, "print('importing', flush=True)\ntry:\n import time; time.sleep(600)\nexcept: pass")
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "\nstopped\n")
    assert process.returncode == 130


def test_a_working_directory_that_was_removed_is_one_line(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir '{gone}' && exec '{sys.executable}' -m project.fit"
    found = subprocess.run(
        ["sh", "-c", command], cwd=gone, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 2, found
    assert found.stderr == "error: the working directory has been removed; change to one that exists\n"
