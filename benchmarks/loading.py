"""Loading JPEG files on one core: torchvision's transforms on PIL, ours from files, and ours from a cache."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.timing import Measure, StepClock
from project.data import FolderDataModule
from project.data.flowers_drawn import SPECIES, draw_flowers
from project.model.normalize import Normalization

_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_NOISE = (
    7.5  # standard deviation on the 0-255 scale: a file then has about 55 KB, flower_photos' 58 KB
)


def write_images(root: Path, count: int, width: int = 366, height: int = 276) -> None:
    """Writes noisy JPEG files, as large as flower_photos' on average: ``root/train/<class>/*``, and one each to evaluate."""
    indices = torch.arange(min(count, 16))
    flowers = draw_flowers(indices % len(SPECIES), indices, seed=0, size=width)[:, :, :height]
    noise = np.random.default_rng(0)
    places = [f"train/{'ab'[number % 2]}/{number}" for number in range(count)]
    places += [f"{split}/{name}/0" for split in ("val", "test") for name in "ab"]
    for number, place in enumerate(places):
        pixels = flowers[number % len(flowers)].permute(1, 2, 0).numpy()
        noisy = (pixels + noise.normal(0, _NOISE, pixels.shape)).clip(0, 255).astype(np.uint8)
        file = root / f"{place}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(file, quality=90, subsampling=0)


def loading_variants(
    folder: Path, count: int = 112, batch_size: int = 16, image_size: int = 224
) -> dict[str, Measure]:
    """Writes files into an empty folder; measures images per second, augmented and normalised."""
    images = folder / "images"
    write_images(images, count)
    streaming, cached = (
        FolderDataModule(str(images), image_size=image_size, batch_size=batch_size, cache=cache)
        for cache in (None, str(folder / "cache"))
    )
    _through_ours(cached, 0)  # fills the cache
    return {
        "torchvision's transforms on PIL": partial(
            _through_pil, images / "train", batch_size, image_size
        ),
        "ours, from files": partial(_through_ours, streaming),
        "ours, from the cache": partial(_through_ours, cached),
    }


def _through_pil(root: Path, batch_size: int, image_size: int, _round: int) -> float:
    steps: list[Any] = [
        transforms.RandomResizedCrop(image_size),
        transforms.RandomHorizontalFlip(),  # type: ignore[no-untyped-call]
        transforms.ToTensor(),
        transforms.Normalize(_MEAN, _STD),  # type: ignore[no-untyped-call]
    ]
    data = ImageFolder(str(root), transforms.Compose(steps))  # type: ignore[no-untyped-call]
    return _rate(DataLoader(data, batch_size, shuffle=True, drop_last=True), lambda _: None)


def _through_ours(data: FolderDataModule, epoch: int) -> float:
    data.setup("fit")
    dataset: Any = data.splits["train"]
    normalize, like = Normalization(data.preprocessing), torch.empty(0)
    order = torch.randperm(
        len(dataset), generator=torch.Generator().manual_seed(epoch)
    ) + epoch * len(dataset)
    loader: Any = DataLoader(
        dataset,
        data.batch_size,
        sampler=order.tolist(),
        collate_fn=lambda batch: batch,
        drop_last=True,
    )
    # normalising is the model's task here, and a transform in the other variant
    return _rate(loader, lambda batch: normalize(data.augment(batch, epoch).images, like))


def _rate(loader: DataLoader[Any], finish: Any) -> float:
    clock, threads = StepClock(1, len(loader) - 1, torch.device("cpu")), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for batch in loader:
            finish(batch)
            clock.tick()
    finally:
        torch.set_num_threads(threads)
    return clock.rate(loader.batch_size or 1)
