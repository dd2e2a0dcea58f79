"""Memory of a run: what a step frees stays with the process, and Linux is asked for it in huge pages."""

import json
import subprocess
import sys
from pathlib import Path

from tests.memory import needs_linux

# in a process of its own, as the settings cannot be taken back
PROGRAM = """
import json
import torch
from project.engine.hardware import tune_malloc
from tests.memory import flags, memory

tune_malloc()
before = memory("Rss")
tensor = torch.ones(2**26)
found = {"before": before, "size": tensor.nbytes, "flags": flags(tensor.data_ptr() + tensor.nbytes // 2)}
del tensor
print(json.dumps({**found, "after": memory("Rss")}))
"""


@needs_linux
def test_freed_memory_is_kept_for_the_next_step_and_large_tensors_lie_where_huge_pages_are_asked_for():
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = json.loads(process.stdout)
    assert found["after"] - found["before"] > 0.9 * found["size"]
    assert "hg" in found["flags"] or not Path("/sys/kernel/mm/transparent_hugepage").exists()
