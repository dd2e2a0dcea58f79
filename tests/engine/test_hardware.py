"""What the machine offers: memory that stays with the process, huge pages, cores within a quota."""

import os
from pathlib import Path

import torch

from project.engine import hardware
from tests.conftest import cases
from tests.distributed.processes import fork, wait
from tests.test_memory import flags, memory, needs_linux


@needs_linux
def test_freed_memory_is_kept_for_the_next_step_and_large_tensors_lie_where_huge_pages_are_asked_for():
    def allocate() -> None:
        hardware.tune_malloc()
        tensor = torch.ones(2**26)
        size, held, asked_for = (
            tensor.nbytes,
            memory("Rss"),
            flags(tensor.data_ptr() + tensor.nbytes // 2),
        )
        del tensor
        assert held - memory("Rss") < 0.1 * size
        assert "hg" in asked_for or not Path("/sys/kernel/mm/transparent_hugepage").exists()

    assert wait([fork(allocate, {})]) == [
        0
    ]  # in a process of its own, as the settings cannot be taken back


@cases(
    "files cores",
    ({}, 64),
    ({"cpu.max": "max 100000"}, 64),
    ({"cpu.max": "400000 100000"}, 4),
    ({"cpu.max": "150000 100000"}, 2),
    ({"cpu.max": "max 100000", "job/cpu.max": "300000 100000"}, 3),
    ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
)
def test_a_containers_quota_limits_the_usable_cores(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(hardware, "_own_cgroup", lambda root: root / "job")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert hardware.usable_cores(tmp_path) == cores
