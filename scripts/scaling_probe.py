"""Measures the link of processes: ``torchrun --nproc-per-node 2 scripts/scaling_probe.py``, on one machine or on several."""

import os
import statistics
import sys
import time

import numpy as np
import torch
from torch import distributed

SIZES = np.array([1e6, 16e6, 100e6])  # bytes


def main() -> None:
    """Times all-reduces, and prints the bandwidth and the latency that explain them."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        sys.exit("usage: torchrun --nproc-per-node 2 scripts/scaling_probe.py")
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    distributed.init_process_group(device_id=device if device.type == "cuda" else None)
    count, times = distributed.get_world_size(), []
    for size in SIZES:
        content, seconds = torch.ones(int(size) // 4, device=device), []
        for _ in range(7):
            distributed.barrier()
            begin = time.perf_counter()
            distributed.all_reduce(content)
            content[0].item()  # a GPU's result is there
            seconds.append(time.perf_counter() - begin)
        times.append(statistics.median(seconds[2:]))
    terms = (
        2 * (count - 1) * np.stack([SIZES / count, np.ones(3)], 1) / np.array(times)[:, None]
    )  # relative errors
    (inverse, latency), *_ = np.linalg.lstsq(terms, np.ones(3))
    if distributed.get_rank() == 0:
        print(
            *(
                f"{size / 1e6:.0f} MB: {1000 * taken:.1f} ms,"
                for size, taken in zip(SIZES, times, strict=True)
            ),
            end=" ",
        )
        print(f"as {8e-9 / inverse:.2f} Gbit/s and {max(latency, 0) * 1e6:.0f} microseconds")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
