"""Beside Lightning's own features: random numbers between epochs, time limits, reloads."""

import csv
import random
from datetime import timedelta

import pytest
import torch
from lightkeeper.exact import (
    AtomicCheckpointIO,
    ExactDataLoader,
    ExactTraining,
    LastCheckpoint,
    ResumingCSVLogger,
    newest_checkpoint,
)
from lightkeeper.exact._training import has_time_left
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Timer
from torch.utils.data import DataLoader, TensorDataset


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.drawn = []

    def on_train_epoch_start(self):
        self.drawn.append(random.random())

    def on_train_epoch_end(self):
        self.drawn.append(random.random())

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()

    def validation_step(self, batch, batch_idx):
        self.log("x", batch[0].mean(), on_step=True, on_epoch=False)

    def train_dataloader(self):
        return ExactDataLoader(DATA, self.trainer, batch_size=2, shuffle=True)

    def val_dataloader(self):
        return ExactDataLoader(DATA, self.trainer, batch_size=6)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


DATA = TensorDataset(torch.arange(24.0).view(12, 2))


def fit(folder, *callbacks, module=None, **options):
    seed_everything(1)
    trainer = Trainer(
        **{"max_epochs": 3} | options,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[LastCheckpoint(every_n_steps=1), ExactTraining(), *callbacks],
        plugins=AtomicCheckpointIO(folder),
        logger=ResumingCSVLogger(folder, name="", version=""),
    )
    module = module or Module()
    trainer.fit(module, ckpt_path=newest_checkpoint(folder))
    return trainer, module


def test_epochs_draw_different_numbers_after_a_validation(tmp_path):
    assert len({*fit(tmp_path)[1].drawn}) == 6


class OwnTraining(Module):
    def train_dataloader(self):
        return DataLoader(DATA, batch_size=2, shuffle=True)


@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:.*does not have many")
def test_they_do_so_where_our_loader_alone_has_seeded_them(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.seed_everything", torch.manual_seed)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert len({*fit(tmp_path, module=OwnTraining())[1].drawn}) == 6


class Stop(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 11:
            raise KeyError


def test_validation_goes_on_counting_where_loaders_are_made_anew(tmp_path):
    options = {"reload_dataloaders_every_n_epochs": 1, "val_check_interval": 2}
    fit(tmp_path / "whole", **options)
    with pytest.raises(KeyError):
        fit(tmp_path / "stopped", Stop(), **options)
    fit(tmp_path / "stopped", **options)
    whole, stopped = (
        [
            row["step"]
            for row in csv.DictReader((tmp_path / name / "metrics.csv").read_text().splitlines())
        ]
        for name in ("whole", "stopped")
    )
    assert stopped == whole


def test_a_run_that_a_time_limit_has_ended_goes_on_with_more_time(tmp_path):
    trainer, _ = fit(tmp_path, Timer(timedelta(microseconds=1)))
    assert 0 < trainer.global_step < 18
    again, _ = fit(tmp_path, Timer(timedelta(microseconds=1)))
    assert again.global_step == trainer.global_step
    assert fit(tmp_path, Timer(timedelta(hours=1)))[0].global_step == 18


def test_one_that_early_stopping_has_ended_as_well_stays_ended():
    trainer = Trainer(callbacks=[Timer(timedelta(hours=1))], logger=False)
    assert has_time_left(trainer, {"callbacks": {"EarlyStopping": {"stopped_epoch": 0}}})
    assert not has_time_left(trainer, {"callbacks": {"EarlyStopping": {"stopped_epoch": 2}}})


class Seen(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        assert trainer.current_epoch == 0 or "x_seen" in trainer.logged_metrics

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("x_seen", 1.0)


def test_the_newest_logged_metrics_come_back(tmp_path):
    options = {"check_val_every_n_epoch": 2, "max_epochs": 3}
    with pytest.raises(KeyError):
        fit(tmp_path, Seen(), StopLater(), **options)
    fit(tmp_path, Seen(), **options)


class StopLater(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 15:
            raise KeyError
