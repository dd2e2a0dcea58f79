"""Shared by the jobs: a small network with fixed weights, its data, and a quiet trainer."""

import logging
import warnings
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import nn

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier

IMAGE_SIZE = 32
NETWORK: dict[str, Any] = {"arch": "resnet9_slim"}


def quiet() -> None:
    """Silences what Lightning says of a tiny run."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for text in (
        "not have many workers",
        "in eval mode at the start",
        "LeafSpec",
        "recommended to use `self.log.*sync_dist",
    ):
        warnings.filterwarnings("ignore", message=f".*{text}.*")


def trainer(world_size: int, **options: Any) -> Trainer:
    """A trainer on that many processes, which torchrun has started."""
    quiet()
    return Trainer(
        **{
            "accelerator": "cpu",
            "devices": world_size,
            "strategy": "ddp" if world_size > 1 else "auto",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": True,  # Lightning's default: it must leave our samplers alone
            "max_epochs": 1,
            **options,
        }
    )


def flowers(train: int, evaluation: int, batch_size: int, **options: Any) -> SyntheticFlowersDataModule:
    """Drawn flowers; validation and test have the same number."""
    sizes = {"train_size": train, "val_size": evaluation, "test_size": evaluation, "image_size": IMAGE_SIZE}
    return SyntheticFlowersDataModule(**sizes, batch_size=batch_size, **options)


def classifier(cls: type[ImageClassifier] = ImageClassifier, **options: Any) -> ImageClassifier:
    """Fixed weights, with BatchNorm statistics of the data so that the predictions are of several classes."""
    torch.manual_seed(0)
    data = flowers(32, 1, 1)
    data.setup("fit")
    model = cls(data.class_names, data.preprocessing, **{**NETWORK, **options})
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = None  # the mean over all batches
    with torch.no_grad():
        model(data.splits["train"].__getitems__(list(range(32))).images)
    for layer, mode in zip(layers, modes, strict=True):
        layer.train(mode)
        layer.momentum = 0.1
    return model
