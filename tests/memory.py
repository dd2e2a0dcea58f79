"""The memory of processes, as Linux tells it."""

import re
from pathlib import Path

import pytest

needs_linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux says it like this")


def memory(kind: str, process: int | str = "self") -> int:
    """Bytes that a process has in memory, of a kind that Linux tells apart."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(1024 * int(size) for size in re.findall(rf"^{kind}:\s+(\d+) kB", lines, re.M))


def private_memory(process: int | str = "self") -> int:
    """Bytes that a process has in memory and shares with no other."""
    return memory("Private_(?:Clean|Dirty)", process)


def flags(address: int) -> list[str]:
    """The kernel's ``VmFlags`` of the region of this process's memory that holds an address."""
    regions = r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags:(.*?)$"
    for first, end, words in re.findall(regions, Path("/proc/self/smaps").read_text(), re.M | re.S):
        if int(first, 16) <= address < int(end, 16):
            return words.split()
    raise ValueError(f"{address:x} is not mapped")
