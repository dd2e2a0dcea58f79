"""Runs that are killed at random moments end like one that nobody disturbed."""

import re
import sys
from pathlib import Path

import pytest

from tests.distributed.processes import succeed


def last_line(place: Path, *options: str) -> str:
    finished = succeed([sys.executable, "-m", "tests.stress", *options], place, timeout=1500)
    return finished.out.splitlines()[-1]


def test_a_kill_changes_nothing(tmp_path):
    found = last_line(tmp_path, "--kills=1", "--once_saved", "--scenario=two processes")  # with loader workers
    assert found == "1 kills, 1 continuations, 0 differences"


@pytest.mark.slow
def test_many_kills_of_all_kinds_of_runs_change_nothing(tmp_path):
    found = re.fullmatch(r"72 kills, (\d+) continuations, 0 differences", last_line(tmp_path, "--kills=72", "--seed=1"))
    assert found
    assert int(found[1]) > 36  # the others came before a checkpoint, or before the next attempt had found it
