"""What the machine offers: memory that stays with the process, huge pages, cores within a quota."""

import json
import os
import sys
from pathlib import Path

from project.engine import hardware
from tests.conftest import cases
from tests.distributed.processes import succeed
from tests.test_memory import needs_linux

# in a process of its own, as the settings cannot be taken back
PROGRAM = """
import json
import torch
from project.engine.hardware import tune_malloc
from tests.test_memory import flags, memory

tune_malloc()
before = memory("Rss")
tensor = torch.ones(2**26)
found = {"before": before, "size": tensor.nbytes, "flags": flags(tensor.data_ptr() + tensor.nbytes // 2)}
del tensor
print(json.dumps({**found, "after": memory("Rss")}))
"""


@needs_linux
def test_freed_memory_is_kept_for_the_next_step_and_large_tensors_lie_where_huge_pages_are_asked_for(tmp_path):
    found = json.loads(succeed([sys.executable, "-c", PROGRAM], tmp_path).out)
    assert found["after"] - found["before"] > 0.9 * found["size"]
    assert "hg" in found["flags"] or not Path("/sys/kernel/mm/transparent_hugepage").exists()


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
