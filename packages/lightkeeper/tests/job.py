"""The toy network, its data and a quiet trainer for jobs of several processes; what commands of tests name."""

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

from tests.toy import ToyClassifier, ToyData, toy, toy_trainer

TINY = [
    *("--data=tests.job.AnnouncingData", "--data.size=48", "--data.val=25", "--data.test=27"),
    *("--model.optimizer.lr=0.001", "--trainer.max_epochs=1"),
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


def classifier(cls: type[ToyClassifier] = ToyClassifier, **options) -> ToyClassifier:
    """Fixed weights, with BatchNorm statistics of the data so that the predictions are of several classes."""
    model = toy(cls, **options)
    data = ToyData(size=32)
    data.setup("fit")
    torch.manual_seed(0)
    update_bn([data.splits["train"].__getitems__(list(range(32))).images], model)
    return model


class AnnouncingData(ToyData):
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
