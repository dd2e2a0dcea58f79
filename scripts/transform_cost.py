"""Measures transforms of one image on one core, beside decoding it: ``python scripts/transform_cost.py IMAGE_FOLDER``."""

import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from project.engine.loading.decode import decode, open_image
from project.engine.loading.transforms import describe

TRANSFORMS: list[Callable[[Tensor], Tensor]] = [
    v2.RandAugment(),
    v2.TrivialAugmentWide(),
    v2.AugMix(),
    v2.ColorJitter(0.4, 0.4, 0.4),
    v2.RandomErasing(p=1.0),
    v2.GaussianBlur(9),
]
_WARM_UP = 3


def milliseconds(work: Callable[[Any], object], items: list[Any]) -> list[float]:
    """Times the work on each item."""
    times = []
    for item in [*items[:_WARM_UP], *items]:
        start = time.perf_counter()
        work(item)
        times.append(1000 * (time.perf_counter() - start))
    return times[_WARM_UP:]


def _decode(file: Path) -> Tensor:
    with open_image(file) as image:
        return decode(image, file)


def main(folder: Path, count: int = 100) -> None:
    """Prints a table for 224 and 32 pixels."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    files = sorted(folder.rglob("*.jpg"))[:count]
    images = [_decode(file) for file in files]
    decoding = milliseconds(_decode, files)
    print(f"{platform.processor() or platform.machine()}, one core; n = {len(files)} images;", end=" ")
    print(f"torch {version('torch')}, torchvision {version('torchvision')}\n")
    for size in (224, 32):
        resized = [v2.functional.resize(image, [size, size]) for image in images]
        costs = {describe(transform).split("(")[0]: milliseconds(transform, resized) for transform in TRANSFORMS}
        print(f"| {size} pixels | ms an image, median (min to max) | images/s | beside decoding |")
        print("| --- | --- | --- | --- |")
        for name, times in {"decoding the file, whole": decoding, **costs}.items():
            median = statistics.median(times)
            spread, beside = f"{min(times):.2f} to {max(times):.2f}", median / statistics.median(decoding)
            print(f"| {name} | {median:.2f} ({spread}) | {1000 / median:,.0f} | {beside:.2f} |")
        print()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
