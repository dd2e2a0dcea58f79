"""Shared by the jobs that tests run on several processes: a small network with fixed weights, its data, a quiet trainer.

``python -m tests.distributed.job MODULE JOB FOLDER`` in each of them runs a function, which writes what it saw there.
"""

import logging
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.optim.swa_utils import update_bn

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier


def trainer(world_size: int, **options) -> Trainer:
    """A quiet trainer on that many processes, which torchrun has started."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    known = "not have many workers|in eval mode at the start|LeafSpec|recommended to use `self.log.*sync_dist"
    warnings.filterwarnings("ignore", message=f".*({known}).*")
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    devices = {"accelerator": "cpu", "devices": world_size, "strategy": "ddp" if world_size > 1 else "auto"}
    short: dict[str, Any] = {"num_sanity_val_steps": 0, "max_epochs": 1}
    # the last is Lightning's default: it must leave our samplers alone
    return Trainer(**{**off, **devices, **short, "use_distributed_sampler": True, **options})


def flowers(train: int, evaluation: int, batch_size: int, **options) -> SyntheticFlowersDataModule:
    """Drawn flowers; validation and test have the same number."""
    sizes = {"train_size": train, "val_size": evaluation, "test_size": evaluation, "image_size": 32}
    return SyntheticFlowersDataModule(**sizes, batch_size=batch_size, **options)


def classifier(cls: type[ImageClassifier] = ImageClassifier, **options) -> ImageClassifier:
    """Fixed weights, with BatchNorm statistics of the data so that the predictions are of several classes."""
    torch.manual_seed(0)
    data = flowers(32, 1, 1)
    data.setup("fit")
    model = cls(data.class_names, data.preprocessing, **{"arch": "resnet9_slim", **options})
    update_bn([data.splits["train"].__getitems__(list(range(32))).images], model)
    return model


if __name__ == "__main__":
    module, name, place = sys.argv[1:]
    getattr(import_module(module), name)(Path(place))
