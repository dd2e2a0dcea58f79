"""Settings that follow from the machine where the command leaves them open."""

import ctypes
import os
import sys
from pathlib import Path

import torch

from .upstream import cpu_computes_in_bfloat16

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def tune_malloc() -> None:
    """Has glibc keep the memory that a step frees for the next one.

    By default it returns large blocks at once, and the system zeroes them page by page when they are requested again:
    ResNet-18 at 32 pixels, batch 128, took 12.1 s of CPU time a step, and with this 10.2 (EPYC with AVX2, 1 thread).
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns how many cores this process may use: a container's quota or a job's affinity may allow fewer than exist."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for folder, quota_file in ((_own_cgroup(root), "cpu.max"), (root / "cpu", "cpu.cfs_quota_us")):
        for level in (folder, *folder.parents):  # a limit of any level above counts, too
            cores = min(cores, _quota(level, quota_file) or cores)
    return cores


def _own_cgroup(root: Path) -> Path:
    """Returns the folder of this process's own cgroup (version 2); the root itself in most containers."""
    try:
        line = next(
            line
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
    except (OSError, StopIteration):
        return root
    return root / line.removeprefix("0::").lstrip("/")


def _quota(level: Path, name: str) -> int | None:
    """Returns the cores that a cgroup may use, rounded up; None if it has no limit."""
    try:
        quota, *period = (level / name).read_text().split()
        period = (
            period or (level / "cpu.cfs_period_us").read_text().split()
        )  # version 1 has it in a file of its own
        return max(1, -(-int(quota) // int(period[0]))) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such file, or "max"
        return None


def best_precision(accelerator: str) -> str:
    """Returns bfloat16 autocast where the hardware computes in it, which trains as well as float32, else float32."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = accelerator in ("auto", "cpu") and cpu_computes_in_bfloat16()
    return "bf16-mixed" if fast else "32-true"
