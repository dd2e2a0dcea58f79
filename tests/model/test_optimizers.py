"""Optimizers: fused steps, learning rates of layers against timm's; schedules against formulas, resumed too."""

import math
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightkeeper.cli._entry import describe_error
from lightkeeper.exact import UserError
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LambdaCallback
from timm.optim import param_groups_layer_decay  # type: ignore[attr-defined]  # not in its __all__
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    StepLR,
)
from torchvision.ops._utils import split_normalization_params

from project.model import CosineWithWarmup
from project.model.networks import build_network
from project.model.optimizers import build_optimizer, fuse
from project.model.schedules import build_schedule
from tests.conftest import (
    FAST,
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
    "arch",
    [
        *("tf_efficientnet_lite0", "vit_tiny_patch16_224", "convnext_atto", "levit_128s"),
        *("vit_small_patch16_dinov3", "eva02_tiny_patch14_224"),
        pytest.param("vit_base_patch32_siglip_256", marks=pytest.mark.slow),
    ],
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
    "arch decay",
    ("resnet18", "not_norm"),
    ("convnext_tiny", "not_norm"),
    ("swin_t", "not_norm"),
    ("resnet18", "all"),
)
def test_weight_decay_is_on_what_torchvisions_or_torchs_own_has_it_on(arch, decay):
    model = linear()
    model.network = network = build_network(arch, 3)
    model.centers = nn.Parameter(torch.ones(3))
    norms = split_normalization_params(network)[0] if decay == "not_norm" else []
    groups = build_optimizer(partial(SGD, weight_decay=0.1), model, 1.0, decay).param_groups
    found = {p: group["weight_decay"] for group in groups for p in group["params"]}
    assert found == dict.fromkeys(model.parameters(), 0.1) | dict.fromkeys(norms, 0.0)


def test_a_schedule_that_makes_all_rates_the_same_is_refused_and_one_that_scales_them_is_not():
    require_rates_that_differ(partial(AdamW, lr=0.1), 0.5)


def require_rates_that_differ(optimizer, layer_decay):
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


SCHEDULE = "--model.lr_scheduler"
REFUSED = """
StepLR step_size=0 -> StepLR fails at the end of epoch 1: integer modulo by zero
CosineAnnealingLR T_max=0 -> CosineAnnealingLR fails at the end of epoch 1: integer modulo by zero
StepLR step_size=1 gamma=-1 -> StepLR has a learning rate of -0.1 in epoch 2; it must be 0 or above
StepLR step_size=1 gamma=.nan -> StepLR has a learning rate of nan in epoch 2
ExponentialLR gamma=.inf -> ExponentialLR has a learning rate of inf in epoch 2
OneCycleLR max_lr=-1 -> OneCycleLR has a learning rate of -0.8
OneCycleLR max_lr=1 total_steps=1 -> OneCycleLR fails at the end of epoch 2: Tried to step 2 times
CosineAnnealingLR T_max=2 eta_min=-1 -> CosineAnnealingLR has a learning rate of -0.4
CosineAnnealingWarmRestarts T_0=0 -> CosineAnnealingWarmRestarts(T_0=0): Expected positive integer
ReduceLROnPlateau monitor=val/loss factor=2 -> Factor should be < 1.0
CyclicLR base_lr=0.01 max_lr=0.1 step_size_up=0 -> step_size_up=0): float division by zero
""".strip().splitlines()


@pytest.mark.parametrize("row", REFUSED)
def test_a_schedule_that_cannot_be_stepped_or_has_no_rate_is_one_line_before_training(
    row, workplace, capsys
):
    words, answer = row.split(" -> ")
    name, *arguments = words.split()
    flags = [f"{SCHEDULE}={name}", *(f"{SCHEDULE}.{argument}" for argument in arguments)]
    line = one_line(lambda: small(*FAST, *flags), capsys)
    assert line.startswith("error: --model.lr_scheduler: ")
    assert answer in line
    assert not [*workplace.rglob("*.ckpt")]


class Broken(StepLR):
    """A schedule of one's own, with a bug."""

    def get_lr(self) -> list[Any]:
        return [1 / (1 - self.last_epoch) for _ in self.base_lrs]


@cases(
    "make",
    partial(Broken, step_size=1),
    partial(LambdaLR, lr_lambda=lambda epoch: 1 / (1 - epoch)),
)
def test_a_bug_in_a_schedule_of_ones_own_keeps_its_traceback(make):
    with pytest.raises(ZeroDivisionError):
        train(make, max_epochs=2)


@cases(
    "make rate",
    (partial(OneCycleLR, max_lr=0.4, total_steps=3), 0.1),  # which changes the momentum, too
    (partial(CosineAnnealingLR, T_max=3), torch.tensor(0.1)),  # which it changes in place
)
def test_trying_a_schedule_changes_nothing_that_it_or_the_optimizer_will_be(make, rate):
    run = trainer(max_epochs=3)
    optimizers = [
        SGD([nn.Parameter(torch.ones(1))], lr=deepcopy(rate), momentum=0.9) for _ in range(2)
    ]
    built: Any = build_schedule(make, optimizers[0], run, "epoch")["scheduler"]
    alone = make(optimizers[1])
    for _ in range(3):
        assert built.get_last_lr() == alone.get_last_lr()
        groups = [
            {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
            for optimizer in optimizers
        ]
        assert groups[0] == groups[1]
        for optimizer, schedule in zip(optimizers, (built, alone), strict=True):
            optimizer.step()
            schedule.step()


OPTIMIZERS = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer
)
UNFIT = {
    "LBFGS": "LBFGS doesn't support per-parameter options",
    "Muon": "Muon only supports 2D parameters",
    "SparseAdam": "SparseAdam takes sparse gradients alone; use Adam",
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_of_torch_trains_or_is_refused_in_one_line(name, workplace, capsys):
    flags = ["--trainer.max_steps=2", "--trainer.limit_val_batches=0"]
    flags.append(f"--model.optimizer=torch.optim.{name}")
    if name not in UNFIT:
        assert small(*flags).trainer.global_step == 2
        return
    line = one_line(lambda: small(*flags), capsys)
    assert line.startswith("error: --model.optimizer")
    assert UNFIT[name] in line


class BrokenSGD(SGD):
    """An optimizer of one's own, with a bug."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr - 1)


def test_a_bug_in_an_optimizer_of_ones_own_keeps_its_traceback(workplace):
    with pytest.raises(ValueError, match=r"Invalid learning rate: -0\.9") as caught:
        small(f"--model.optimizer={__name__}.BrokenSGD")
    assert describe_error(caught.value) is None


def test_a_group_that_is_added_in_training_has_its_own_rate_on_the_same_way_down():
    optimizer = SGD([nn.Parameter(torch.zeros(2))], lr=0.2)
    schedule = CosineWithWarmup(optimizer)
    schedule.set_length(10, 2)
    for step in range(10):
        if step == 4:
            optimizer.add_param_group({"params": nn.Parameter(torch.zeros(2)), "lr": 0.05})
        optimizer.step()
        schedule.step()
    first, added = (group["lr"] for group in optimizer.param_groups)
    assert added == pytest.approx(first / 4) == pytest.approx(0.05 * 0.01)


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


def test_a_schedule_that_watches_what_validation_does_not_log_is_refused_before_training(
    workplace, capsys
):
    options = [*PLATEAU, "--model.lr_scheduler.monitor=val/los", "--trainer.num_sanity_val_steps=1"]
    said = one_line(lambda: small(*options), capsys)
    assert (
        "--model.lr_scheduler.monitor: validation does not log val/los, but val/accuracy, " in said
    )
    assert not [*workplace.rglob("*.ckpt")]
