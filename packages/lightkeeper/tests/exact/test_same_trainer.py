"""A trainer that fits again, tuners before a fit, steps by hand, and what a kill leaves of curves."""

import csv
import os
import random
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightkeeper.exact import (
    AtomicCheckpointIO,
    ExactDataLoader,
    ExactTraining,
    LastCheckpoint,
    ResumingCSVLogger,
    UserError,
    newest_checkpoint,
)
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.tuner.tuning import Tuner
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from tests.processes import forked, succeed
from tests.toy import rows, toy_trainer

EPOCHS, STEPS = 3, 6


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.lr = 0.01
        self.line = nn.Linear(2, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        loss = self.line(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val", self.line(batch[0]).mean())

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=self.lr)


class ByHand(Line):
    """Steps twice for each batch, but for the first."""

    automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        self.manual_backward(self.line(batch[0]).square().mean())
        for _ in range(2 if self.global_step else 1):
            optimizer.step()


class StopAt(Callback):
    """Presses Ctrl-C once, in a step."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        if trainer.global_step == self.step:
            self.step = None
            signal.raise_signal(signal.SIGINT)


class Saves(Callback):
    """Notes in which steps a checkpoint was saved."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_save_checkpoint(self, trainer: Trainer, *_: object) -> None:
        self.steps.append(trainer.global_step)


def start(
    folder: Path,
    stop_at: int | None = None,
    *callbacks: Callback,
    every: int | None = None,
    devices: int = 1,
) -> tuple[Trainer, ExactDataLoader, ExactDataLoader]:
    trainer = toy_trainer(
        max_epochs=EPOCHS,
        devices=devices,
        log_every_n_steps=1,
        default_root_dir=folder,
        callbacks=[
            LastCheckpoint(every_n_steps=every),
            ExactTraining(),
            StopAt(stop_at),
            *callbacks,
        ],
        plugins=AtomicCheckpointIO(folder),
        logger=ResumingCSVLogger(folder, name="", version=""),
    )
    samples = TensorDataset(torch.ones(2 * STEPS, 2))
    train = ExactDataLoader(samples, trainer, 2, shuffle=True)
    return trainer, train, ExactDataLoader(samples, trainer, 2)


def stopped(folder: Path, step: int) -> tuple[Trainer, ExactDataLoader, ExactDataLoader]:
    """A trainer that Ctrl-C has stopped in a step, and its loaders."""
    trainer, train, val = start(folder, step)
    with pytest.raises(SystemExit):
        trainer.fit(Line(), train, val)
    return trainer, train, val


def logged_steps(folder: Path) -> list[int]:
    return [int(row["step"]) for row in rows(folder / "metrics.csv") if row["loss"]]


@pytest.mark.parametrize("step", [STEPS - 1, STEPS, 2 * STEPS - 2, EPOCHS * STEPS - 1])
def test_a_trainer_that_was_stopped_anywhere_fits_on_as_a_new_process_would(step, tmp_path):
    trainer, train, val = stopped(tmp_path, step)
    trainer.fit(Line(), train, val, ckpt_path=newest_checkpoint(tmp_path))
    assert trainer.global_step == EPOCHS * STEPS
    assert logged_steps(tmp_path) == [*range(EPOCHS * STEPS)]


def test_what_is_drawn_behind_a_fit_depends_on_what_was_drawn_before_it_alone(tmp_path):
    drawn: list[list[float]] = []
    for step in (None, STEPS, None, None):  # undisturbed, stopped, resumed, and found finished
        folder = tmp_path / ("killed" if len(drawn) else "whole")
        seed_everything(1, verbose=False)
        trainer, train, val = start(folder, step)
        with nullcontext() if step is None else pytest.raises(SystemExit):
            trainer.fit(Line(), train, val, ckpt_path=newest_checkpoint(folder))
        drawn.append([torch.rand(()).item(), random.random()])
    assert drawn[0] == drawn[2] == drawn[3]
    trainer, train, val = start(tmp_path / "another")  # of an ensemble, for which nothing is seeded
    trainer.fit(Line(), train, val)
    assert torch.rand(()).item() not in drawn[0]


def test_a_tuner_before_a_resumed_fit_loses_neither_steps_nor_rows(tmp_path):
    stopped(tmp_path, STEPS - 1)
    trainer, train, val = start(tmp_path)
    module = Line()
    Tuner(trainer).lr_find(module, train, val, num_training=4)
    trainer.fit(module, train, val, ckpt_path=newest_checkpoint(tmp_path))
    assert trainer.global_step == EPOCHS * STEPS
    assert logged_steps(tmp_path) == [*range(EPOCHS * STEPS)]


def resume_apart(out: Path) -> None:
    """Resumes on two machines, each with a folder of its own."""
    folder = out / os.environ["RANK"]
    trainer, train, val = start(folder, devices=2)
    with pytest.raises(UserError, match="share"):
        trainer.fit(Line(), train, val, ckpt_path=newest_checkpoint(folder))


@pytest.mark.parametrize("others", [None, STEPS - 1])
def test_machines_that_do_not_share_the_folder_of_a_run_are_told_so(tmp_path, others):
    """One would go on where the other begins, or is, and both wait for each other in other collectives."""
    stopped(tmp_path / "0", STEPS)
    if others is not None:
        stopped(tmp_path / "1", others)
    succeed(forked(2, resume_apart, tmp_path), tmp_path)


def test_a_kill_while_a_column_is_added_leaves_the_rows_of_before(tmp_path, monkeypatch):
    def killed(writer: object) -> None:
        raise KeyboardInterrupt

    logger = ResumingCSVLogger(tmp_path, name="", version="")
    logger.log_metrics({"loss": 1.0}, 0)
    logger.save()
    logger.log_metrics({"val": 1.0}, 0)
    with monkeypatch.context() as patch:
        patch.setattr(csv.DictWriter, "writeheader", killed)
        with pytest.raises(KeyboardInterrupt):
            logger.save()
    assert (tmp_path / "metrics.csv").read_text() == "loss,step\n1.0,0\n"
    logger.save()
    assert (tmp_path / "metrics.csv").read_text() == "loss,step,val\n1.0,0,\n,0,1.0\n"


def test_every_n_steps_counts_steps_by_hand_however_many_a_batch_takes(tmp_path):
    saves = Saves()
    trainer, train, val = start(tmp_path, None, saves, every=4)
    trainer.fit(ByHand(), train, val)
    assert {5, 9, 13, 17, 21, 25, 29, 33} <= {*saves.steps}  # the first ones behind 4, 8, 12, …


def test_a_loader_serves_its_batches_before_its_trainer_fits(tmp_path):
    _, train, _ = start(tmp_path)
    assert [len(batch[0]) for batch in train] == STEPS * [2]
