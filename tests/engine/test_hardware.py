"""What the machine offers: memory that stays with the process, cores within a quota."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch

from project.engine import hardware
from tests.distributed.processes import fork, wait
from tests.engine.toy import cases


def held() -> int:
    """Bytes that this process has in memory."""
    (size,) = re.findall(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return 1024 * int(size)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_freed_memory_is_kept_for_the_next_step():
    def allocate() -> None:
        hardware.tune_malloc()
        tensor = torch.ones(2**26)
        size = tensor.nbytes
        before = held()
        del tensor
        assert before - held() < 0.1 * size

    # in a process of its own, as the settings cannot be taken back
    assert wait([fork(allocate, {})]) == [0]


@cases(
    "files cores",
    ({}, 64),
    ({"cpu.max": "max 100000"}, 64),
    ({"cpu.max": "400000 100000"}, 4),
    ({"cpu.max": "150000 100000"}, 2),
)
def test_a_containers_quota_limits_the_usable_cores(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert hardware.usable_cores(tmp_path) == cores
