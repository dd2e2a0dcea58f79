"""A small network, its data and a quiet trainer for the jobs of several processes; what commands of tests name."""

import logging
import os
import signal
import time
import warnings
from pathlib import Path

import torch
from lightkeeper.exact._errors import LocalError
from lightning.pytorch import Callback, Trainer
from torch.optim.swa_utils import update_bn

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from tests.conftest import QUIET, SLIM, TINY_DATA, TINY_TRAINER
from tests.engine.toy import toy_trainer

TINY = [
    *(
        "--data=tests.distributed.job.AnnouncingDataModule",
        "--data.num_workers=0",
        *TINY_DATA,
        *TINY_TRAINER,
        *QUIET,
    ),
    *("--data.train_size=48", "--data.val_size=25", "--data.test_size=27"),
    *(*SLIM, "--model.optimizer.lr=0.001", "--trainer.precision=32-true"),
]
CALLBACK = f"--trainer.callbacks+={__name__}."


def trainer(world_size: int, **options) -> Trainer:
    """A quiet trainer on that many processes, which torchrun has started."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    known = "not have many workers|in eval mode at the start|LeafSpec|recommended to use `self.log.*sync_dist"
    warnings.filterwarnings("ignore", message=f".*({known}).*")
    strategy = "ddp" if world_size > 1 else "auto"
    own = {"devices": world_size, "strategy": strategy, "num_sanity_val_steps": 0, "max_epochs": 1}
    # the last is Lightning's default: it must leave our samplers alone
    return toy_trainer(**{**own, "use_distributed_sampler": True, **options})


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


class AnnouncingDataModule(SyntheticFlowersDataModule):
    def prepare_data(self) -> None:
        print("downloading", flush=True)


class FirstFails(Callback):
    """The first process fails while the others are busy for good, as with a collective on a GPU."""

    def on_train_start(self, trainer, pl_module) -> None:
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            raise LocalError("only the first one fails")
        Path("busy").write_text(str(os.getpid()))
        time.sleep(600)


class Dies(Callback):
    """Kills the process of a rank in a hook of Lightning's, once, as the system does if memory runs out."""

    def __init__(self, rank: int, hook: str, step: int = 0) -> None:
        self.rank, self.step = rank, step
        setattr(self, hook, self._die)

    def _die(self, trainer, *_, **__) -> None:
        is_there = trainer.global_rank == self.rank and trainer.global_step >= self.step
        if is_there and not trainer.sanity_checking and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class RecordsBatches(Callback):
    """Writes down which images a process gets in a step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx: int) -> None:
        step, rank = trainer.global_step, trainer.global_rank
        images = " ".join(map(str, batch.indices.tolist()))
        Path("batches").mkdir(exist_ok=True)
        (Path("batches") / f"{step}.{rank} of {trainer.world_size}").write_text(images)
