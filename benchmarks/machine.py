"""What the metrics were measured on."""

import platform
from pathlib import Path
from typing import Any

import torch

from project.engine.hardware import best_precision, usable_cores
from project.engine.run.checkpoint import versions


def machine() -> dict[str, Any]:
    """Processor, cores, GPU, versions, and the precision that ``project.fit`` chooses there."""
    on_gpu = torch.cuda.is_available()
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if on_gpu else None,
        "precision": best_precision("auto"),
        "versions": versions(),
    }


def machine_line(found: dict[str, Any]) -> str:
    """Says it in one line.

    Args:
        found: As :func:`machine` returns it.
    """
    cores = f"{found['cores']} {'core' if found['cores'] == 1 else 'cores'}"
    parts = [found["processor"], cores, f"{found['torch_threads']} torch threads", found["gpu"] or "no GPU"]
    packages = [f"{name} {version}" for name, version in found["versions"].items()]
    return ", ".join([*parts, f"precision {found['precision']}", *packages])


def _processor() -> str:
    """The model's name, which on Linux only the kernel says."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
