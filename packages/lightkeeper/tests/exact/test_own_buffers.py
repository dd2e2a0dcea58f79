"""Buffers of each process, which DDP leaves alone where a module steps by hand."""

import contextlib
import os
import signal
from functools import partial
from typing import Any

import torch
from lightkeeper.exact import ExactDataLoader, ExactTraining, LastCheckpoint, newest_checkpoint
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import TensorDataset

from tests.processes import forked, run


class Running(LightningModule):
    """Weighs a loss with its mean so far, as StyleGAN2 does with path lengths."""

    mean: torch.Tensor
    of_halves: torch.Tensor

    def __init__(self, stop: int | None, accumulates: bool) -> None:
        super().__init__()
        self.automatic_optimization = accumulates
        self.linear = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("of_halves", torch.full((3,), torch.nan))  # one never comes
        self.stop = stop

    def training_step(self, batch, batch_idx):
        loss = self.linear(batch[0]).square().mean()
        self.mean.lerp_(loss.detach(), 0.1)
        self.of_halves[batch_idx % 2] = loss.detach()
        loss = (loss - self.mean - self.of_halves.nanmean()).square()
        if self.automatic_optimization:
            return loss
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        if self.trainer.global_step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return None

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder, stop=None, validates=False, batches=1):
    seed_everything(1, verbose=False)
    callbacks = [LastCheckpoint(), ExactTraining()]
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, callbacks=callbacks,
        default_root_dir=folder, num_sanity_val_steps=0,
        accumulate_grad_batches=batches, val_check_interval=1, **quiet,
    )  # fmt: skip
    data = TensorDataset(torch.randn(32, 3))
    train = ExactDataLoader(data, trainer, batch_size=8, shuffle=True)
    val = ExactDataLoader(data, trainer, batch_size=8) if validates else None
    model = Running(stop, batches > 1)
    with contextlib.suppress(SystemExit):
        trainer.fit(model, train, val, ckpt_path=newest_checkpoint(folder))
    return model.state_dict()


def train(out):
    whole = fit(out / "whole")
    validated = fit(out / "validated", validates=True)
    fit(out / "stopped", stop=6)
    resumed = fit(out / "stopped")
    accumulated = [
        {n: x for n, x in fit(out / f"{v}", None, v, 2).items() if "linear" in n} for v in (0, 1)
    ]
    torch.save([whole, validated, resumed, *accumulated], out / f"{os.environ['RANK']}.pt")


def test_each_process_goes_on_with_its_buffers_after_a_validation_and_where_it_resumes(tmp_path):
    """Weights would differ: DDP shares no buffers if a module steps by hand."""
    run(forked(2, train, tmp_path), tmp_path)
    for rank in range(2):
        whole, validated, resumed, summed, validated_within = torch.load(
            tmp_path / f"{rank}.pt", weights_only=True
        )
        for name, value in whole.items():
            same = partial(
                torch.testing.assert_close, expected=value, rtol=0, atol=0, equal_nan=True
            )
            same(validated[name], msg=f"{name} after validations")
            same(resumed[name], msg=f"{name} of the resumed run")
        for name, value in summed.items():
            assert torch.equal(value, validated_within[name]), f"{name} validated within a step"
