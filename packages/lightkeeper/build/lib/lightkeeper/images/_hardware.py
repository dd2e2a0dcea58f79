"""Settings that follow from the machine where the command leaves them open."""

import ctypes
import math
import os
import sys
from pathlib import Path

import torch

_M_TRIM_THRESHOLD = -1  # of malloc.h
_M_MMAP_MAX = -4


def tune_malloc() -> None:
    """Has glibc keep the memory that a step frees for the next one.

    By default it returns large blocks at once, and the system zeroes them page by page when they
    are requested again: ResNet-18 at 32 pixels, batch 128, took 12.1 s of CPU time a step, and with
    this 10.2 (EPYC with AVX2, 1 thread).
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns how many cores this process may use: a quota or an affinity may allow fewer."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = map(int, (root / "cpu.max").read_text().split())
    except (OSError, ValueError):  # no such file, or "max"
        return cores
    return min(cores, max(1, math.ceil(quota / period)))


def loader_workers(devices: int) -> int:
    """Returns the default number of processes that load images for each of a machine's devices."""
    return min(8, max(1, usable_cores() // devices - 1))


def best_precision(accelerator: str) -> str:
    """Returns bfloat16 autocast if the hardware is faster in it, or float32."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = accelerator in ("auto", "cpu") and _is_cpu_faster_in_bfloat16()
    return "bf16-mixed" if fast else "32-true"


def _is_cpu_faster_in_bfloat16() -> bool:
    """Returns True for AMX, and for AVX-512's instructions on other CPUs than Intel's.

    A Xeon without AMX took 1.05 to 1.44 times float32's CPU time for training steps of ResNet-9 and
    ResNet-18 at 32 pixels (1 thread, n = 3).
    """
    has = torch.cpu.get_capabilities()
    return bool(has.get("amx_bf16") or (has.get("avx512_bf16") and "Intel" not in has["cpu_name"]))
