"""The loading path on one core: a tutorial's, ours from files, and ours from the second epoch on with a cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.jpeg_files import write_images
from benchmarks.plan import Files
from benchmarks.timing import Measure, StepClock
from project.data import FolderDataModule
from project.data.module import IMAGENET_MEAN, IMAGENET_STD
from project.engine.loading.workers import share_batch
from project.model.normalize import normalize, to_255_scale

_CPU = torch.device("cpu")


def loading_variants(files: Files, folder: Path) -> dict[str, Measure]:
    """Writes the files and measures how many of them are loaded in a second, normalised and augmented.

    Args:
        files: How many, and how large.
        folder: An empty folder for them and the cache.
    """
    images = folder / "images"
    write_images(images, files.count, files.width, files.height)
    streaming, cached = (_opened(images, files, cache) for cache in (None, str(folder / "cache")))
    _ours(cached, files, 0)  # fills the cache
    return {
        "torchvision's transforms on PIL": partial(_classical, images / "train", files),
        "ours, from files": partial(_ours, streaming, files),
        "ours, from the cache": partial(_ours, cached, files),
    }


def _opened(root: Path, files: Files, cache: str | None) -> FolderDataModule:
    data = FolderDataModule(str(root), image_size=files.image_size, batch_size=files.batch_size, cache=cache)
    data.setup("fit")
    return data


def _classical(root: Path, files: Files, _round: int) -> float:
    steps: list[Any] = [
        transforms.RandomResizedCrop(files.image_size),
        transforms.RandomHorizontalFlip(),  # type: ignore[no-untyped-call]
        transforms.ToTensor(),
        transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),  # type: ignore[no-untyped-call]
    ]
    data = ImageFolder(str(root), transforms.Compose(steps))  # type: ignore[no-untyped-call]
    clock = _clock(files)
    with _one_thread():
        for _ in DataLoader(data, batch_size=files.batch_size, shuffle=True, drop_last=True):
            clock.tick()
    return clock.rate(files.batch_size)


def _ours(data: FolderDataModule, files: Files, epoch: int) -> float:
    mean, std = (to_255_scale(values) for values in (IMAGENET_MEAN, IMAGENET_STD))
    dataset, clock = data.splits["train"], _clock(files)
    with _one_thread():
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch)) + epoch * len(dataset)
        loader = DataLoader(
            cast(Any, dataset), files.batch_size, sampler=order.tolist(), collate_fn=share_batch, drop_last=True
        )
        for batch in loader:
            images = data.augment(batch, epoch).images
            normalize(images, mean, std)  # the model's first act, which the other way does here
            clock.tick()
    return clock.rate(files.batch_size)


def _clock(files: Files) -> StepClock:
    return StepClock(warm_up=1, steps=files.count // files.batch_size - 1, device=_CPU)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
