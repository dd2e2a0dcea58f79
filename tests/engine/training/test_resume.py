"""A run that is stopped resumes, and ends in the same bits as one that was not: weights, optimizer, metrics, curves.

Two processes are in tests/distributed/test_stopping.py, kills at any moment in tests/stress.py, GPUs in tests/test_gpu.py.
"""

import random
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from torch.optim import SGD

from examples.recipes.airbench import Airbench
from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from tests.conftest import cases
from tests.distributed.processes import succeed
from tests.small import load, one_line, require_same_end, rows, small, stop_at
from tests.stress import RANDOM_TRANSFORM, SmallNetwork, outcome
from tests.test_examples import vit

STEPS = 8
RUN, LAST = Path("runs/run"), Path("runs/run/checkpoints/last.ckpt")


def noisy(batch: Any) -> Any:
    """The batch with noise as large as what torch, Python and NumPy draw."""
    largest = 1 + random.randrange(8) + np.random.randint(8)  # noqa: NPY002
    return batch._replace(
        images=batch.images ^ torch.randint(largest, batch.images.shape, dtype=torch.uint8)
    )


class NoisyFlowers(SyntheticFlowersDataModule):
    """Overrides hooks, and forgets to call the first one's own."""

    def on_before_batch_transfer(self, batch, dataloader_idx: int):
        return noisy(batch)

    def on_after_batch_transfer(self, batch, dataloader_idx: int):
        return noisy(super().on_after_batch_transfer(batch, dataloader_idx))


class NoisyClassifier(ImageClassifier):
    """Overrides the hook that our data modules leave to the model, and the step."""

    drawn: ClassVar[list[float]] = []

    def transfer_batch_to_device(self, batch, device, dataloader_idx: int):
        return noisy(super().transfer_batch_to_device(batch, device, dataloader_idx))

    def training_step(self, batch, batch_idx: int):
        self.drawn.append(random.random())
        return super().training_step(batch, batch_idx) * (1 + self.drawn[-1])


class ByHand(ImageClassifier):
    """Has an optimizer of the head and one of the rest, each of which takes a step in each batch."""

    automatic_optimization = False

    def configure_optimizers(self):
        *rest, weight, bias = self.network.parameters()
        return SGD([weight, bias], lr=0.1), SGD(rest, lr=0.01, momentum=0.9)

    def training_step(self, batch, batch_idx: int):
        for optimizer in cast(Any, self.optimizers()):
            loss = super().training_step(batch, batch_idx)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss


class Stops(Callback):
    """Ends training after a step, as early stopping of a user's own does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, *_) -> None:
        trainer.should_stop = trainer.should_stop or trainer.global_step == self.step


class Ticking(SmallNetwork):
    """A second passes in each step, for Lightning's timer."""

    seconds = 0

    def forward(self, x):
        Ticking.seconds += self.training
        return super().forward(x)


class Row(NamedTuple):
    """A configuration, and the optimizer steps in which its run is stopped, one after another; 0 is before the first."""

    flags: str
    stops: Iterable[int] = (1, 6)
    network: Callable[[int], Any] = SmallNetwork
    slow: bool = False
    fails: Iterable[int] = ()  # in these epochs, before it is stopped
    but: str = "?"  # what need not be the same
    ends: Iterable[int] = ()  # those of the stops at which its training was to end, then


PLATEAU = "--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/loss --model.lr_scheduler.patience=0"
NOISY = f"--data={__name__}.NoisyFlowers --model={__name__}.NoisyClassifier"
EVERY_THIRD = "--trainer.log_every_n_steps=3"
SMALL_BATCHES = f"{EVERY_THIRD} --data.batch_size=8"
STOPS = f"--trainer.callbacks+={__name__}.Stops --trainer.callbacks.step"
IN_PAIRS = f"{SMALL_BATCHES} --trainer.accumulate_grad_batches=2"
EMA = "--trainer.callbacks+=EMAWeightAveraging --trainer.callbacks.decay=0.9"
FIVE_EPOCHS = "--trainer.max_epochs=5 --callbacks.last_checkpoint.every_n_steps=1"
MIXED = "--data.batch_transforms+=torchvision.transforms.v2"
SCALER = "--trainer.plugins.scaler"
SCALED = (  # by a plugin, which names the precision
    "--trainer.precision=null --trainer.plugins=MixedPrecision --trainer.plugins.precision=16-mixed"
    f" --trainer.plugins.device=cpu {SCALER}=torch.amp.GradScaler {SCALER}.device=cpu"
)
ROWS = {
    "plain": Row(EVERY_THIRD, range(STEPS + 1), slow=True),
    "accumulation, validation across epochs, a schedule that watches it": Row(
        f"{IN_PAIRS} --trainer.val_check_interval=3 --trainer.check_val_every_n_epoch=null {PLATEAU}",
        range(STEPS + 1),
    ),
    # the last step of an epoch has one batch, the others two
    "accumulation": Row(f"{IN_PAIRS} --data.train_size=56", slow=True),
    # five steps, and in the second epoch, of which the last has one batch, three
    "accumulation that changes": Row(
        f"{SMALL_BATCHES} --data.train_size=40 --trainer.callbacks+=GradientAccumulationScheduler"
        ' --trainer.callbacks.scheduling={"1":2} --model.lr_scheduler_interval=epoch',
        slow=True,
    ),
    # the first is within an epoch, the second is its last
    "until a step, and until later ones": Row(
        f"{EVERY_THIRD} --trainer.max_epochs=null --trainer.max_steps=10 {PLATEAU}",
        (1, 2, 4, 6, 9),
        ends=(2, 4, 6),
    ),
    # before its test
    "stopped early within an epoch": Row(
        "--trainer.max_epochs=6 --trainer.val_check_interval=3 --trainer.callbacks+=EarlyStopping"
        " --trainer.callbacks.monitor=val/loss --trainer.callbacks.patience=1"
        " --trainer.callbacks.min_delta=5",
        (7,),
    ),
    # in the second of two epochs of four steps; the test is one step more
    "stopped by a callback within an epoch": Row(f"{EVERY_THIRD} {STOPS}=7", (3, 5, 7, 8)),
    "stopped by a callback before it may": Row(
        f"{EVERY_THIRD} {STOPS}=2 --trainer.min_epochs=1", (3, 4, 5)
    ),
    "stopped by a callback, accumulation, an average": Row(
        f"{IN_PAIRS} {EMA} {STOPS}=6", (3, 6, 7)
    ),
    "a limit of time": Row(
        f"{EVERY_THIRD} --trainer.max_time=00:00:00:07", (3, 5, 7, 8), network=Ticking
    ),
    "a limit of steps within an epoch": Row(f"{EVERY_THIRD} --trainer.max_steps=7", (3, 5, 7, 8)),
    "one cycle, double precision": Row(
        "--model.lr_scheduler=OneCycleLR --model.lr_scheduler.max_lr=0.4 --model.lr_scheduler_interval=step"
        " --trainer.precision=64-true"
    ),
    "AdamW, a learning rate that falls": Row(
        f"{PLATEAU} --model.optimizer=AdamW --trainer.max_epochs=3", slow=True
    ),
    "a dynamic loss scale": Row(
        f"{SCALED} {SCALER}.init_scale=64 {SCALER}.growth_interval=3", (5,)
    ),
    "the head first": Row(
        "--model.lr_scheduler=examples.recipes.head_first.HeadFirst --model.layer_decay=0.5 --model.optimizer=AdamW",
        (2, 5),
    ),
    "an average that starts late": Row(
        f"{EMA} --trainer.callbacks.update_starting_at_step=4", (3, 6)
    ),
    # between a validation and the end of its epoch, and after the last validation
    "seldom validated": Row(
        f"{FIVE_EPOCHS} --trainer.check_val_every_n_epoch=2", (15, 18), fails=(1, 3)
    ),
    "often validated": Row(f"{FIVE_EPOCHS} --trainer.val_check_interval=2", (15,), fails=(1, 3)),
    "random transforms of each image, MixUp and CutMix": Row(
        f"{RANDOM_TRANSFORM} --data.train_transforms.magnitude=5"
        " --data.train_transforms+=tests.engine.loading.test_transforms.of_numpy"
        f" {MIXED}.MixUp --data.batch_transforms.alpha=0.2 {MIXED}.CutMix"
    ),
    "a data module and a model that draw in hooks": Row(
        f"{NOISY} {IN_PAIRS} --trainer.val_check_interval=3"
    ),
    "two optimizers by hand": Row(f"--model={__name__}.ByHand {EVERY_THIRD}", (2, 6, 12)),
    "Airbench, Muon, alternating flips": Row(
        "--model.optimizer=examples.recipes.muon.Muon --model.test_time_augmentation=flip_and_shift --data.flip=alternating"
        f" --data.crop_padding=2 {EVERY_THIRD}"
        " --trainer.callbacks+=examples.recipes.airbench.WhitenByFirstBatch",
        network=lambda num_classes: Airbench(num_classes, (8, 16, 16)),
    ),
    "cached features": Row(
        "--model.freeze=backbone --model.weights=weights.pth --data.flip=false --data.crop_padding=0 --data.cutout=0"
        " --trainer.callbacks+=project.callbacks.CachedFeatures"
    ),
    "LoRA": Row("--model=examples.lora.LoRAClassifier --model.rank=2", network=vit, slow=True),
}


@pytest.mark.filterwarnings("ignore:.*You have overridden.*")
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.slow] * row.slow, id=name) for name, row in ROWS.items()],
)
def test_a_stopped_run_ends_as_if_undisturbed(workplace, monkeypatch, row):
    clock = SimpleNamespace(monotonic=lambda: Ticking.seconds)
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time", clock)
    flags = row.flags.split()
    torch.save(SmallNetwork(8).state_dict(), "weights.pth")  # for the row that needs some
    small(*flags, "--trainer.default_root_dir=whole", network=row.network)
    expected, steps = (
        outcome(Path("whole/run")),
        load(Path("whole/run/checkpoints/last.ckpt"))["global_step"],
    )
    for epoch in row.fails:  # once a row of metrics.csv has been written behind the last checkpoint
        failing = LambdaCallback(
            on_train_epoch_start=lambda run, _, epoch=epoch: 1 / (run.current_epoch - epoch)
        )
        with pytest.raises(ZeroDivisionError):
            small(*flags, network=row.network, callbacks=[failing])
        assert (len(rows(RUN / "metrics.csv")), load(LAST)["global_step"] < 4 * epoch) == (
            epoch,
            True,
        )
    for step in row.stops:
        stop_at(
            step, *flags, *[f"--trainer.max_steps={step}"] * (step in row.ends), network=row.network
        )
        assert load(LAST)["global_step"] == min(step, steps)
        assert not load(LAST)["about"]["thresholds"]  # they are of a validation with other weights
    small(*flags, network=row.network)
    require_same_end(RUN, expected, row.but)
    assert {
        "val/loss",
        "val/confusion_matrix",
        "test/accuracy",
        "train/loss",
        "last: optimizer_states",
    } <= {*expected}


@cases("flag", "--data.batch_size=32", "--data.train_size=40")
def test_an_epoch_that_has_no_batches_left_is_refused(workplace, capsys, flag):
    stop_at(3)  # of four batches of 16
    said = one_line(lambda: small(flag), capsys)
    assert "stopped after 3 batches of an epoch, which has 2 now; resume with the" in said
    assert load(LAST)["global_step"] == 3


@pytest.mark.filterwarnings("ignore:.*You have overridden.*")
def test_no_two_batches_draw_alike(workplace):
    NoisyClassifier.drawn.clear()
    small(*NOISY.split())
    assert len(set(NoisyClassifier.drawn)) == len(NoisyClassifier.drawn) == STEPS


def last_line(place: Path, *options: str) -> str:
    return succeed(
        [sys.executable, "-m", "tests.stress", *options], place, timeout=1500
    ).out.splitlines()[-1]


def test_a_kill_changes_nothing(tmp_path):
    found = last_line(
        tmp_path, "--kills=1", "--once_saved", "--scenario=two processes"
    )  # with loader workers
    assert found == "1 kills, 1 continuations, 0 differences"


@pytest.mark.slow
def test_many_kills_of_all_kinds_of_runs_change_nothing(tmp_path):
    found = re.fullmatch(
        r"72 kills, (\d+) continuations, 0 differences",
        last_line(tmp_path, "--kills=72", "--seed=1"),
    )
    assert found
    assert (
        int(found[1]) > 12
    )  # the others came before a checkpoint, or before the next attempt had found it
