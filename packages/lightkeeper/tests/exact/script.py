"""A project that is not of images: a LightningModule, texts of variable lengths, stock metrics.

Usage: script.py FOLDER [OPTION=NUMBER ...]; the options are the arguments of :func:`train`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from lightkeeper.exact import (
    AtomicCheckpointIO,
    ExactDataLoader,
    ExactTraining,
    LastCheckpoint,
    ResumingCSVLogger,
    ResumingTensorBoardLogger,
    StopOnNonFinite,
    newest_checkpoint,
)
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassPrecision,
    MulticlassRecall,
)

SIZE, CLASSES = 97, 4


class Texts(Dataset[tuple[Tensor, int]]):
    """Vectors of words, float (length, 8), of 3 to 7 words, some of them noisy, and a label."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        words = torch.randn(3 + index % 5, 8, generator=generator)
        return words + 0.1 * torch.randn(words.shape), index % CLASSES


def padded(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Collates texts to float (N, longest, 8) and labels to int64 (N,)."""
    words, labels = zip(*samples, strict=True)
    return pad_sequence(list(words), batch_first=True), torch.tensor(labels)


class Classifier(LightningModule):
    """Draws random numbers, normalises batches, and logs in every way that Lightning has.

    Args:
        by_hand: If true, two optimizers step by hand.
    """

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.automatic_optimization = not by_hand
        layers = [nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16)]
        self.words = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, CLASSES))
        self.train_accuracy = MulticlassAccuracy(CLASSES, average="micro")
        self.train_auroc = MulticlassAUROC(CLASSES)
        self.train_others = MetricCollection(
            [MulticlassPrecision(CLASSES), MulticlassRecall(CLASSES)], prefix="train/"
        )  # which share a state
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")
        self.auroc = MulticlassAUROC(CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.words(words).mean(1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        words, labels = batch
        logits = self(words)
        loss = cross_entropy(logits, labels)
        self.log("train/loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("train/most", loss, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True)
        for name in ("accuracy", "auroc"):
            metric = getattr(self, f"train_{name}")
            metric.update(logits.softmax(1), labels)
            self.log(f"train/{name}", metric, on_step=False, on_epoch=True)
        self.train_others.update(logits.softmax(1), labels)
        self.log_dict(self.train_others, on_step=False, on_epoch=True)
        if not self.automatic_optimization:
            optimizers: Any = self.optimizers()
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in optimizers:
                optimizer.step()
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        words, labels = batch
        probabilities = self(words).softmax(1)
        self.accuracy.update(probabilities, labels)
        self.auroc.update(probabilities, labels)
        self.log_dict({"val/accuracy": self.accuracy, "val/auroc": self.auroc})

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        if not self.automatic_optimization:
            return AdamW(self.words.parameters()), SGD(self.head.parameters(), 0.1, momentum=0.9)
        optimizer = AdamW(self.parameters())
        schedule = CosineAnnealingLR(optimizer, 40)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Die(Callback):
    """Kills the first process after a batch, counted over all epochs."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.seen = 0

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        done = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        if done == self.batch and trainer.is_global_zero:
            os.kill(os.getpid(), signal.SIGKILL)


def train(
    folder: str,
    dies: int = 0,
    devices: int = 1,
    workers: int = 0,
    accumulate: int = 1,
    by_hand: int = 0,
    checks: float = 1.0,
    every: int = 5,
) -> None:
    """Trains for 4 epochs, or goes on; dies after a batch, unless its number is 0."""
    seed_everything(3, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(devices),
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=4,
        accumulate_grad_batches=int(accumulate),
        val_check_interval=checks,
        log_every_n_steps=3,
        default_root_dir=folder,
        logger=[
            ResumingCSVLogger(folder, name="csv", version=""),
            ResumingTensorBoardLogger(folder, name="tensorboard", version=""),
        ],
        callbacks=[
            LastCheckpoint(every_n_steps=int(every)),
            ExactTraining(),
            StopOnNonFinite(),
            ModelCheckpoint(Path(folder, "best"), monitor="val/accuracy", mode="max"),
            Die(int(dies)),
        ],
        plugins=AtomicCheckpointIO(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loader: dict[str, Any] = {"num_workers": int(workers), "collate_fn": padded}
    trainer.fit(
        Classifier(bool(by_hand)),
        ExactDataLoader(Texts(), trainer, batch_size=8, shuffle=True, **loader),
        ExactDataLoader(Texts(), trainer, batch_size=16, **loader),
        ckpt_path=newest_checkpoint(folder),
        weights_only=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen: dict[str, Any] = dict(option.split("=") for option in sys.argv[2:])
    options: dict[str, Any] = {name: float(value) for name, value in chosen.items()}
    train(sys.argv[1], **options)
