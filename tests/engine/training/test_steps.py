"""The learning rate follows its schedule on every optimizer step, however many batches make one."""

import math

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from project.engine.errors import UserError
from tests.model.test_classifier import Memory, linear, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning walks torch's pytrees by a deprecated class
    "ignore:.*smaller than the logging interval",  # advice that has no use on data this small
)


class Rates(Callback):
    """The learning rate of every optimizer step."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.seen.append([group["lr"] for group in optimizer.param_groups])


def expected_rates(steps, base, lrf, warmup):
    """By the formula of the tutorials, after a warmup in equal steps."""
    rising = [base * (step + 1) / warmup for step in range(min(warmup, steps))]
    falling = steps - warmup
    return rising + [
        base * (((1 + math.cos(step * math.pi / falling)) / 2) * (1 - lrf) + lrf) for step in range(max(falling, 0))
    ]


@pytest.mark.parametrize(
    ("options", "steps", "warmup_epochs", "warmup_steps"),
    [
        # 32 images in batches of 7 are 5 batches, and with accumulation 3 steps, in an epoch
        ({"max_epochs": 4, "accumulate_grad_batches": 2}, 12, 0, 0),
        ({"max_epochs": 4, "accumulate_grad_batches": 2}, 12, 1.5, 4),
        ({"max_epochs": 3}, 15, 1, 5),
        ({"max_epochs": 3, "max_steps": 8}, 8, 0.4, 2),
        ({"max_epochs": -1, "max_steps": 8}, 8, 0, 0),
        ({"max_epochs": -1, "max_steps": 8}, 8, 0.4, 2),
        ({"max_epochs": 3, "limit_train_batches": 4, "accumulate_grad_batches": 4}, 3, 0, 0),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 6, 0.5, 1),
        # 5 + 3 + 2 + 2 steps, of which 5 and two fifths of 3 are warmup
        ({"max_epochs": 4, "scheduling": {1: 2, 2: 4}}, 12, 1.4, 6),
        ({"max_epochs": 4, "max_steps": 9, "scheduling": {0: 3}}, 8, 0, 0),
        ({"max_epochs": 9, "max_steps": 9, "scheduling": {0: 3, 1: 2}}, 9, 0, 0),
    ],
    ids=str,
)
def test_the_learning_rate_follows_the_schedule_on_every_optimizer_step(options, steps, warmup_epochs, warmup_steps):
    options = dict(options)
    rates = Rates()
    model = linear(lrf=0.01, warmup_epochs=warmup_epochs, optimizer=lambda parameters: SGD(parameters, lr=0.02))
    scheduling = options.pop("scheduling", None)
    callbacks = [rates, GradientAccumulationScheduler(scheduling)] if scheduling else [rates]
    run = trainer(limit_val_batches=0, **options, callbacks=callbacks)
    run.fit(model, datamodule=Memory(batch_size=7))
    assert len(rates.seen) == steps
    for seen, wanted in zip(rates.seen, expected_rates(steps, 0.02, 0.01, warmup_steps), strict=True):
        assert seen == pytest.approx([wanted, wanted], rel=1e-9)  # one for each of the two groups
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.02 * 0.01)


class ChangedAccumulation(Callback):
    """Changes the number of optimizer steps in a way of its own."""

    def on_train_epoch_start(self, trainer, pl_module):
        trainer.accumulate_grad_batches = 1 + trainer.current_epoch


def test_what_changes_the_number_of_steps_unannounced_is_refused():
    with pytest.raises(UserError, match=r"epochs of 2 batches, 1 of them a step, .* changed that to 2 and 2; use Grad"):
        trainer(max_epochs=2, callbacks=[ChangedAccumulation()]).fit(linear(), datamodule=Memory())
    run = trainer(max_epochs=2, callbacks=[GradientAccumulationScheduler({1: 2})])
    with pytest.raises(UserError, match="base_batch_size scales the learning rate once, but GradientAccumulationSch"):
        run.fit(linear(base_batch_size=16), datamodule=Memory())


def test_a_scheduler_of_ones_own_is_stepped_after_each_epoch_or_step():
    for interval, expected in {"epoch": [1, 1, 0.5, 0.5], "step": [1, 0.5, 0.25, 0.125]}.items():
        rates = Rates()
        model = linear(
            optimizer=lambda parameters: SGD(parameters, lr=1e-3),
            lr_scheduler=lambda optimizer: StepLR(optimizer, 1, gamma=0.5),
            lr_scheduler_interval=interval,
        )
        trainer(max_epochs=2, callbacks=[rates], limit_val_batches=0).fit(model, datamodule=Memory())
        assert [seen[0] for seen in rates.seen] == pytest.approx([1e-3 * factor for factor in expected])


def test_without_an_end_the_cosine_schedule_is_refused():
    with pytest.raises(UserError, match=r"--trainer\.max_epochs or --trainer\.max_steps"):
        trainer(max_epochs=-1).fit(linear(), datamodule=Memory())
