"""A kill at any moment changes nothing."""

import re
import sys

import pytest

from tests.processes import succeed
from tests.toy import cases


@cases(
    "kills resumed options",
    (1, 1, ["--once_saved", "--scenario=two processes"]),  # with loader workers
    # others came before a checkpoint, or before the next attempt had found it
    pytest.param(72, 13, ["--seed=1"], marks=pytest.mark.slow),
)
def test_kills_of_all_kinds_of_runs_change_nothing(tmp_path, kills, resumed, options):
    command = [sys.executable, "-m", "tests.stress", f"--kills={kills}", *options]
    line = succeed(command, tmp_path, timeout=1500).out.splitlines()[-1]
    counts = re.fullmatch(rf"{kills} kills, (\d+) continuations, 0 differences, \d+ runs", line)
    assert counts, line
    assert int(counts[1]) >= resumed
