"""Jobs that tests run on several processes: ``python -m tests.distributed.jobs NAME FOLDER`` in each of them.

Each process writes down in the folder what it saw, by its rank.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import SGD

from project.callbacks import StopOnNonFinite
from project.data import FolderDataModule
from project.engine.cli.command import one_line_errors
from project.engine.errors import UnreadableFileError
from project.engine.loading import check
from project.engine.loading.batch import ArrayDataset, ImageBatch
from project.engine.loading.decode import check_image
from project.model import ImageClassifier
from project.model.schedules import CosineWithWarmup
from tests.data.stubs import NoiseDataModule
from tests.distributed import job_evaluate, job_train
from tests.distributed.job import classifier, flowers, trainer
from tests.memory import private_memory

BAD_STEP, BAD_RANK = 3, 1


class OneBadLoss(ImageClassifier):
    """A loss that is infinite in one step of one process, with finite gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        bad = self.trainer.global_step + 1 == BAD_STEP and self.trainer.global_rank == BAD_RANK
        return super().training_step(batch, batch_idx) + (math.inf if bad else 0.0)


class Witness(Callback):
    """Keeps the parameters and the names of the images from the start of each step."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        train = trainer.datamodule.splits["train"]  # type: ignore[attr-defined]  # set where it is passed to fit
        images = [train.name(index) for index in batch.indices.tolist()]
        self.seen = {"step": trainer.global_step + 1, "images": images, "before": parameters(pl_module)}


def parameters(model: ImageClassifier) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def finite(out: Path) -> None:
    """Trains until the loss of the second process alone is infinite, its gradients finite."""
    model = classifier(optimizer=partial(SGD, lr=0.01), lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0))
    model.__class__, witness = OneBadLoss, Witness()
    one = trainer(int(os.environ["WORLD_SIZE"]), callbacks=[witness, StopOnNonFinite()], limit_val_batches=0)
    with one_line_errors():
        try:
            one.fit(model, datamodule=flowers(40, 5, 8))
        except BaseException as error:
            seen = {**witness.seen, "error": str(error), "after": parameters(model)}
            torch.save(seen, out / f"{one.global_rank}.pt")
            raise


class LargeDataModule(NoiseDataModule):
    """Enough noise to stand out against what a process needs anyway."""

    loads = 0

    def load(self) -> dict[str, ArrayDataset]:
        self.loads += 1
        return super().load()

    def setup(self, stage: str) -> None:
        """Measures what opening the datasets adds to this process's memory, when each has seen every page."""
        assert self.trainer is not None
        before = private_memory()
        super().setup(stage)
        splits: Any = self.splits
        sums = {split: int(data.images.sum()) for split, data in splits.items()}
        self.trainer.strategy.barrier()
        kept = private_memory() - before
        self.found = {"loads": self.loads, "kept": kept, "sums": sums, "size": splits["train"].images.nbytes}
        self.trainer.strategy.barrier()


def memory(out: Path) -> None:
    """Opens a large dataset."""
    data = LargeDataModule(train=300_000)
    one = trainer(int(os.environ["WORLD_SIZE"]), limit_val_batches=1)
    one.validate(classifier(), datamodule=data, verbose=False)
    (out / f"{one.global_rank}.json").write_text(json.dumps(data.found))


class Mean(LightningModule):
    """Predicts the label from the mean colour."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def training_step(self, batch: ImageBatch, _: int) -> Tensor:
        return nn.functional.cross_entropy(self.layer(batch.images.float().mean((2, 3))), batch.labels)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.001)


def skip(folder: Path) -> None:
    """Trains on image files of which the first process, it alone, cannot read some."""
    rank, module, whole = int(os.environ["RANK"]), cast(Any, check), check_image

    def look(file: Path) -> None:
        if rank == 0 and file.name.endswith("1.jpg"):
            raise UnreadableFileError(f"'{file}' cannot be read as an image")
        whole(file)

    module.check_image = look
    options: dict[str, Any] = {"image_size": 16, "batch_size": 4, "num_workers": 0, "val_fraction": 0.3}
    data = FolderDataModule(str(folder / "images"), on_bad_image="skip", test_fraction=0.3, **options)
    trainer(2, max_epochs=2).fit(Mean(), datamodule=data)
    splits: Any = data.splits
    files = {split: [file.name for file in dataset.files] for split, dataset in splits.items()}
    (folder / f"{rank}.json").write_text(json.dumps(files))


def on_one_gpu(out: Path, machines: int = 2) -> dict[str, Any]:
    """Trains one of "machines" that share a GPU, over gloo, with BatchNorm synchronised; NODE_RANK says which."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    model = classifier(optimizer=partial(SGD, lr=0.001), lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0))
    logger = job_train.LossLogger()
    strategy: Any = DDPStrategy(process_group_backend="gloo") if machines > 1 else "auto"
    options = {"strategy": strategy, "num_nodes": machines, "sync_batchnorm": machines > 1, "log_every_n_steps": 1}
    trainer(1, **options, accelerator="gpu", logger=logger).fit(model, datamodule=flowers(32, 5, 8, cutout=8))
    found = {"losses": logger.losses, "weights": {name: value.cpu() for name, value in model.state_dict().items()}}
    torch.save(found, out / f"{os.environ.get('NODE_RANK')}.pt")
    return found


JOBS: dict[str, Callable[[Path], Any]] = {
    "evaluate": job_evaluate.main,
    "finite": finite,
    "memory": memory,
    "on_one_gpu": on_one_gpu,
    "skip": skip,
    "train": job_train.main,
}

if __name__ == "__main__":
    JOBS[sys.argv[1]](Path(sys.argv[2]))
