"""Training steps and evaluation, images per second without loading."""

import torch

from benchmarks import plain, through_lightning
from benchmarks.plan import Work
from benchmarks.random_images import RandomImagesDataModule
from benchmarks.timing import Measure

OURS, OUR_SETTINGS = "ours, through Lightning", "plain loop, our settings"


def training_variants(work: Work, device: torch.device) -> dict[str, Measure]:
    """Measures how many images a second are trained on: a tutorial's loop, one with our settings, and ours."""
    data = images_for(work, device)
    return {
        "plain loop, as in tutorials": lambda _: plain.train_as_tutorials_do(work, data, device).rate(work.batch_size),
        OUR_SETTINGS: lambda _: plain.train_as_we_do(work, data, device)[0].rate(work.batch_size),
        OURS: lambda _: through_lightning.train(work, device)[0].rate(work.batch_size),
    }


def evaluation_variants(work: Work, device: torch.device) -> dict[str, Measure]:
    """Measures how many images a second are evaluated: by a tutorial's loop, and by ours."""
    data = images_for(work, device)
    return {
        "plain loop, as in tutorials": lambda _: plain.evaluate_as_tutorials_do(work, data, device).rate(
            work.batch_size
        ),
        OURS: lambda _: through_lightning.evaluate(work, device).rate(work.batch_size),
    }


def images_for(work: Work, device: torch.device) -> RandomImagesDataModule:
    """As many images as the steps take, for all loops the same."""
    return RandomImagesDataModule(
        work.images, work.image_size, device=str(device), batch_size=work.batch_size, flip=False
    )
