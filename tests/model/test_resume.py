"""A resumed run has the optimizer and the schedule of the run that it resumes; only its length may grow."""

from functools import partial
from typing import Any

import pytest
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR

from project.engine.errors import UserError
from project.model import CosineWithWarmup
from tests.model.test_classifier import Memory, linear, trainer
from tests.model.test_schedules import Rates

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Are you sure you didn't mean",
)
BEFORE: dict[str, Any] = {"optimizer": partial(SGD, lr=0.1, momentum=0.9)}


def fit(path: Any, resume: Any = None, max_epochs: int = 2, **options: Any) -> list[float]:
    """Trains, saves a checkpoint, and returns the rates of the steps that were taken."""
    run = trainer(max_epochs=max_epochs, limit_val_batches=0, callbacks=[rates := Rates()])
    run.fit(linear(**BEFORE | options), datamodule=Memory(), ckpt_path=resume, weights_only=True)
    run.save_checkpoint(path)
    return [seen[0] for seen in rates.seen]


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({}, {"optimizer": partial(AdamW, lr=0.1)}, "--model.optimizer SGD, .* got AdamW"),
        ({}, {"optimizer": partial(SGD, lr=0.2, momentum=0.9)}, r"--model\.optimizer's lr 0\.1, .* got 0\.2"),
        ({}, {"lr_scheduler": partial(CosineWithWarmup, lrf=0.5)}, r"--model\.lr_scheduler's lrf 0\.01, .* got 0\.5"),
        (
            {"lr_scheduler": partial(MultiStepLR, milestones=[1, 3])},
            {"lr_scheduler": partial(MultiStepLR, milestones=[1, 4])},
            r"milestones \[\[1, 1\], \[3, 1\]\], .* got \[\[1, 1\], \[4, 1\]\]",
        ),
        ({}, {"layer_decay": 0.5}, "lr_scale None"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_settings_are_one_line_that_names_the_way(tmp_path, before, now, text):
    fit(tmp_path / "last.ckpt", **before)
    with pytest.raises(UserError, match=rf"^this run was trained with .*{text}.*--model\.weights .*last\.ckpt --name"):
        fit(tmp_path / "new.ckpt", tmp_path / "last.ckpt", max_epochs=3, **before | now)


def test_other_parameters_are_one_line(tmp_path):
    fit(tmp_path / "last.ckpt")
    model = linear(**BEFORE)
    model.network[2].bias.requires_grad_(False)
    with pytest.raises(UserError, match=r"last\.ckpt' does not fit this optimizer: it is not that of 1 parameters"):
        trainer(max_epochs=3).fit(model, datamodule=Memory(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("make", [CosineWithWarmup, partial(OneCycleLR, max_lr=0.4)], ids=["cosine", "one cycle"])
def test_a_longer_run_stretches_its_schedule(tmp_path, make):
    options = {"lr_scheduler": make, "lr_scheduler_interval": "step"}
    fit(tmp_path / "last.ckpt", **options)
    resumed = fit(tmp_path / "longer.ckpt", tmp_path / "last.ckpt", max_epochs=4, **options)
    whole = fit(tmp_path / "whole.ckpt", max_epochs=4, **options)
    assert resumed[1:] == pytest.approx(whole[5:])  # the first was set at the end of the shorter run
