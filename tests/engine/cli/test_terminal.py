"""Commands continue where nobody reads their output and print any name on any terminal; importing them does nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from project.engine.cli.terminal import lasting
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_log_on_a_full_disk_is_no_error_and_a_result_is_one_error():
    with open("/dev/full", "w") as full:
        for _ in range(2):
            print("epoch 1 of 6", file=lasting(full, messages=True))
        results = lasting(full)
        print("accuracy", file=results)
        with pytest.raises(OSError, match="No space left"):
            results.flush()
        results.close()


def test_importing_the_package_has_no_side_effect():
    program = (
        "import gc, signal, sys\nbefore = sys.stdout, signal.getsignal(signal.SIGINT)\n"
        "import project.fit\nassert gc.isenabled() and before == (sys.stdout, signal.getsignal(signal.SIGINT))"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), timeout=120, check=True)
