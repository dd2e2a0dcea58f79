"""Optimizers: fused steps, learning rates of layers against timm's; schedules against formulas, resumed too."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LambdaCallback
from timm.optim import param_groups_layer_decay  # type: ignore[attr-defined]  # not in its __all__
from torch import nn
from torch.optim import SGD, AdamW, RMSprop
from torch.optim.lr_scheduler import LinearLR, LRScheduler, OneCycleLR, StepLR

from examples.recipes.muon import Muon
from project.engine.errors import UserError
from project.model import CosineWithWarmup
from project.model.networks import build_network
from project.model.optimizers import build_optimizer, fuse
from project.model.schedules import build_schedule
from tests.conftest import (
    cases,
    one_line,
    small,
)
from tests.model.test_classifier import Memory, linear, trainer

RATE = 0.02
BEFORE: dict[str, Any] = {"optimizer": partial(SGD, lr=RATE, momentum=0.9)}
CHANGING = [GradientAccumulationScheduler({0: 1, 1: 2})]
NO_WARMUP = partial(CosineWithWarmup, warmup_epochs=0)
SHORT = partial(CosineWithWarmup, warmup_epochs=0.4)
HALVING = partial(StepLR, step_size=1, gamma=0.5)


@cases(
    "cls asked fused",
    (SGD, {}, True),
    (SGD, {"fused": False}, False),
    (SGD, {"foreach": True}, None),
    (SGD, {"differentiable": True}, None),
    (RMSprop, {}, None),  # torch has none
)
def test_steps_are_fused_unless_another_way_was_asked_for(cls, asked, fused):
    optimizer = cls([nn.Parameter(torch.zeros(1))], **asked)
    fuse(optimizer)
    assert optimizer.param_groups[0].get("fused") is fused


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_parameters_outside_of_the_network_are_trained_as_its_head_with_decay_by_their_kind(
    layer_decay,
):
    model = linear()
    model.centers, model.temperature = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))
    model.fixed = nn.Parameter(torch.ones(3), requires_grad=False)
    groups = build_optimizer(
        partial(SGD, lr=0.1, weight_decay=0.01), model, layer_decay
    ).param_groups
    settings = {
        p: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]
    }
    assert (settings[model.centers], settings[model.temperature]) == ((0.1, 0.01), (0.1, 0.0))
    assert settings.keys() == {*model.parameters()} - {model.fixed}


@pytest.mark.parametrize("layer_decay", [0.7, 1.0])
@pytest.mark.parametrize(
    "arch", ["tf_efficientnet_lite0", "vit_tiny_patch16_224", "convnext_atto", "levit_128s"]
)
def test_rates_and_weight_decay_are_those_of_timm_for_its_networks(arch, layer_decay):
    network: Any = build_network(f"timm/{arch}", 3)
    next(network.parameters()).requires_grad_(False)
    named = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    theirs = param_groups_layer_decay(network, 0.1, named, layer_decay=layer_decay)
    model: Any = SimpleNamespace(network=network, parameters=network.parameters)
    ours = build_optimizer(partial(SGD, lr=1.0, weight_decay=0.1), model, layer_decay).param_groups
    expected = {
        p: (group.get("lr_scale", 1.0), group["weight_decay"])
        for group in theirs
        for p in group["params"]
    }
    assert {
        p: (group["lr"], group["weight_decay"]) for group in ours for p in group["params"]
    } == expected
    assert len(expected) == len(list(network.parameters())) - 1


@cases(
    "optimizer layer_decay",
    (partial(AdamW, lr=0.1), 0.5),
    (partial(Muon, lr=0.1, adam_lr=0.01), 1.0),
)
def test_a_schedule_that_makes_all_rates_the_same_is_refused_and_one_that_scales_them_is_not(
    optimizer, layer_decay
):
    model, run = linear(), trainer(max_epochs=1)
    model.network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 3))
    built = build_optimizer(optimizer, model, layer_decay)
    for make in (CosineWithWarmup, partial(LinearLR, start_factor=0.1)):
        build_schedule(make, built, run, "epoch")
    with pytest.raises(UserError, match="all layers the same learning rate"):
        build_schedule(
            partial(OneCycleLR, max_lr=0.1, total_steps=9, cycle_momentum=False), built, run, None
        )


def train(
    schedule, interval=None, callbacks=(), resume=None, model=BEFORE, **options
) -> tuple[list[list[float]], Any]:
    """The learning rates of every optimizer step, and those after the last."""
    seen: list[list[float]] = []

    def note(trainer, *_) -> None:
        seen.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    callbacks = [LambdaCallback(on_before_optimizer_step=note, on_train_end=note), *callbacks]
    run = trainer(limit_val_batches=0, callbacks=callbacks, **options)
    module = linear(lr_scheduler=schedule, lr_scheduler_interval=interval, **model)
    run.fit(module, datamodule=Memory(batch_size=7), ckpt_path=resume, weights_only=True)
    return seen, run


def cosine(steps: int, warmup: int) -> list[float]:
    """By the formula of the tutorials, after a warmup in equal steps, down to a hundredth."""
    falling = steps - warmup
    cosines = [
        0.99 * (1 + math.cos(step * math.pi / falling)) / 2 + 0.01 for step in range(falling + 1)
    ]
    return [(step + 1) / warmup for step in range(warmup)] + cosines


class Falling(LRScheduler):
    interval, length = "step", 1

    def set_length(self, total_steps: int, steps_per_epoch: float) -> None:
        assert total_steps % steps_per_epoch == 0
        self.length = total_steps

    def get_lr(self) -> list[Any]:
        return [rate * (1 - self.last_epoch / self.length) for rate in self.base_lrs]


@cases(
    "schedule interval options factors",  # 32 images in batches of 7 are 5 batches, and with accumulation 3 steps, in an epoch
    (
        partial(SHORT, warmup_epochs=1.5),
        None,
        {"max_epochs": 4, "accumulate_grad_batches": 2},
        cosine(12, 4),
    ),
    (CosineWithWarmup, None, {"max_epochs": 3}, cosine(15, 5)),
    (CosineWithWarmup, None, {"max_epochs": 3, "max_steps": 8}, cosine(8, 4)),
    (SHORT, None, {"max_epochs": -1, "max_steps": 8}, cosine(8, 2)),
    (
        NO_WARMUP,
        None,
        {"max_epochs": 3, "limit_train_batches": 4, "accumulate_grad_batches": 4},
        cosine(3, 0),
    ),
    (SHORT, None, {"max_epochs": 3, "limit_train_batches": 0.5}, cosine(6, 1)),
    (NO_WARMUP, "epoch", {"max_epochs": 2, "callbacks": CHANGING}, [1] * 5 + [0.505] * 3 + [0.01]),
    (HALVING, None, {"max_epochs": 2}, [1] * 5 + [0.5] * 5 + [0.25]),
    (HALVING, "step", {"max_epochs": 2}, [0.5**step for step in range(11)]),
    (Falling, None, {"max_epochs": 2}, [1 - step / 10 for step in range(11)]),
)
def test_a_schedule_lasts_as_long_as_training_and_is_stepped_in_time(
    schedule, interval, options, factors
):
    seen, _ = train(schedule, interval, **options)
    for of_group in zip(*seen, strict=True):
        assert of_group == pytest.approx([RATE * factor for factor in factors])


@cases(
    "schedule options text",
    (
        CosineWithWarmup,
        {"max_epochs": -1},
        r"know where training ends; set --trainer\.max_epochs or",
    ),
    (
        CosineWithWarmup,
        {"max_epochs": 2, "callbacks": CHANGING},
        "add --model.lr_scheduler_interval epoch",
    ),
    (
        None,
        {"model": {"layer_decay": 1.5}},
        r"--model\.layer_decay must be above 0, at most 1, got 1\.5",
    ),
)
def test_what_a_schedule_does_not_accept_is_one_line(schedule, options, text):
    with pytest.raises(UserError, match=text):
        train(schedule, **{"max_epochs": 1} | options)


@cases("make", CosineWithWarmup, partial(OneCycleLR, max_lr=0.4), Falling)
def test_a_longer_run_stretches_its_schedule(tmp_path, make):
    train(make, "step", max_epochs=2)[1].save_checkpoint(last := tmp_path / "last.ckpt")
    found = (train(make, "step", max_epochs=4, resume=path)[0] for path in (last, None))
    resumed, whole = ([rates[0] for rates in seen] for seen in found)
    assert resumed[1:] == pytest.approx(
        whole[11:]
    )  # the first was set at the end of the shorter run


PLATEAU = [
    "--model.lr_scheduler=ReduceLROnPlateau",
    "--model.lr_scheduler.patience=0",
    "--model.lr_scheduler.threshold=1e9",  # nothing is an improvement but the first
    "--trainer.max_epochs=4",
]


@cases(
    "flags monitor looks",  # how often it looked at the metric, in four epochs of four steps
    ("", "val/loss", 4),
    ("--trainer.check_val_every_n_epoch=2", "val/loss", 2),
    ("--model.lr_scheduler_interval=step", "val/loss", 0),
    ("--model.lr_scheduler_interval=step --trainer.val_check_interval=1", "val/loss", 16),
    ("--model.lr_scheduler_interval=step --trainer.log_every_n_steps=1", "train/loss", 16),
    ("--trainer.check_val_every_n_epoch=2", "train/loss", 4),
    ("--trainer.check_val_every_n_epoch=null --trainer.val_check_interval=3", "val/loss", 4),
    ("--trainer.check_val_every_n_epoch=null --trainer.val_check_interval=9", "val/loss", 0),
    ("--trainer.check_val_every_n_epoch=2 --model.lr_scheduler_interval=step", "val/loss", 0),
    ("--trainer.log_every_n_steps=0", "train/loss", 0),
)
def test_a_schedule_looks_at_a_metric_when_it_was_measured_or_lightning_says_that_it_is_not(
    workplace, capsys, flags, monitor, looks
):
    options = [*PLATEAU, f"--model.lr_scheduler.monitor={monitor}", *flags.split()]
    if looks:
        (config,) = small(*options).trainer.lr_scheduler_configs
        assert config.scheduler.last_epoch == looks
    else:
        said = one_line(lambda: small(*options), capsys)
        assert f"ReduceLROnPlateau conditioned on metric {monitor} which is not available" in said
