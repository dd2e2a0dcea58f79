"""A run that is stopped resumes, and ends in the same bits as one that was not.

Weights, optimizer, metrics and curves are compared. Two processes are in cli/test_stopping.py,
kills at any moment in stress.py, GPUs in exact/test_gpu.py.
"""

import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import pytest
import torch
from lightkeeper.images._checkpoint import weights_file
from lightning.pytorch.callbacks import Callback
from torch.optim import SGD

from tests.exact.test_kept import Placed
from tests.toy import (
    LAST,
    RUN,
    STEPS,
    ToyClassifier,
    ToyData,
    cases,
    fit,
    load,
    one_line,
    outcome,
    require_same_end,
    stop_at,
)


def noisy(batch: Any) -> Any:
    """The batch with noise as large as what torch, Python and NumPy draw."""
    largest = 1 + random.randrange(8) + np.random.randint(8)  # noqa: NPY002
    changes = torch.randint(largest, batch.images.shape, dtype=torch.uint8)
    return batch._replace(images=batch.images ^ changes)


class NoisyData(ToyData):
    """Overrides hooks, and forgets to call the first one's own."""

    def on_before_batch_transfer(self, batch, dataloader_idx: int):
        return noisy(batch)

    def on_after_batch_transfer(self, batch, dataloader_idx: int):
        return noisy(super().on_after_batch_transfer(batch, dataloader_idx))


class Lazy(Placed):
    """Draws with its first batch, which a resumed run has within an epoch, too."""

    def left(self, batches: Iterator[Any]) -> Iterator[Any]:
        torch.rand(())
        yield from super().left(batches)


class PlacedData(ToyData):
    """Has a loader of its own, whose state is a number."""

    def train_dataloader(self) -> Any:
        train: Any = self.splits["train"]
        return Lazy(train, self.batch_size, collate_fn=lambda batch: batch)


class NoisyClassifier(ToyClassifier):
    """Overrides the hook that data modules leave to the model, and the step."""

    drawn: ClassVar[list[float]] = []

    def transfer_batch_to_device(self, batch, device, dataloader_idx: int):
        return noisy(super().transfer_batch_to_device(batch, device, dataloader_idx))

    def training_step(self, batch, batch_idx: int):
        self.drawn.append(random.random())
        return super().training_step(batch, batch_idx) * (1 + self.drawn[-1])


class ByHand(ToyClassifier):
    """Has an optimizer of the head and one of the rest; each takes a step in each batch."""

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

    def on_fit_start(self, *_) -> None:
        self.kept = [self.step]

    def state_dict(self) -> Any:  # Lightning saves whatever it is, and asks while it trains
        return self.kept

    def load_state_dict(self, state_dict: Any) -> None:
        assert state_dict == [self.step]


class Ticking(ToyClassifier):
    """A second passes in each step, for Lightning's timer."""

    seconds = 0

    def training_step(self, batch, batch_idx: int):
        Ticking.seconds += 1
        return super().training_step(batch, batch_idx)


class Row(NamedTuple):
    """A configuration, and the steps in which its run is stopped, one after another.

    0 is before the first step. ``ends`` are the stops at which its training was to end, then.
    """

    flags: str
    stops: Iterable[int] = (1, 6)
    slow: bool = False
    ends: Iterable[int] = ()


PLATEAU = (
    "--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/loss"
    " --model.lr_scheduler.patience=0"
)
NOISY = f"--data={__name__}.NoisyData --model={__name__}.NoisyClassifier"
EVERY_THIRD = "--trainer.log_every_n_steps=3"
STOPS = f"--trainer.callbacks+={__name__}.Stops --trainer.callbacks.step"
IN_PAIRS = f"{EVERY_THIRD} --data.batch_size=8 --trainer.accumulate_grad_batches=2"
EMA = "--trainer.callbacks+=EMAWeightAveraging --trainer.callbacks.decay=0.9"
TRANSFORMS = "torchvision.transforms.v2"
SCALER = "--trainer.plugins.scaler"
SCALED = (  # by a plugin, which names the precision
    "--trainer.precision=null --trainer.plugins=MixedPrecision --trainer.plugins.precision=16-mixed"
    f" --trainer.plugins.device=cpu {SCALER}=torch.amp.GradScaler {SCALER}.device=cpu"
)
ROWS = {
    "plain": Row(EVERY_THIRD, range(STEPS + 1), slow=True),
    "accumulation, validation across epochs, a schedule that watches it": Row(
        f"{IN_PAIRS} --trainer.val_check_interval=3 --trainer.check_val_every_n_epoch=null"
        f" {PLATEAU}",
        range(STEPS + 1),
    ),
    # the last step of an epoch has one batch, the others two
    "accumulation": Row(f"{IN_PAIRS} --data.size=56", slow=True),
    # five steps, and in the second epoch, of which the last has one batch, three
    "accumulation that changes": Row(
        f"{EVERY_THIRD} --data.batch_size=8 --data.size=40"
        " --trainer.callbacks+=GradientAccumulationScheduler"
        ' --trainer.callbacks.scheduling={"1":2}',
        slow=True,
    ),
    # the first is within an epoch, the second is its last
    "until a step, and until later ones": Row(
        f"{EVERY_THIRD} --trainer.max_epochs=null --trainer.max_steps=10 {PLATEAU}",
        (1, 2, 4, 6, 9),
        ends=(2, 4, 6),
        slow=True,
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
        f"{EVERY_THIRD} {STOPS}=2 --trainer.min_epochs=1", (3, 4, 5), slow=True
    ),
    "stopped by a callback, accumulation, an average": Row(
        f"{IN_PAIRS} {EMA} {STOPS}=6", (3, 6, 7), slow=True
    ),
    "a limit of time": Row(
        f"{EVERY_THIRD} --trainer.max_time=00:00:00:07 --model={__name__}.Ticking",
        (3, 5, 7, 8),
        slow=True,
    ),
    "a limit of steps within an epoch": Row(f"{EVERY_THIRD} --trainer.max_steps=7", (3, 5, 7, 8)),
    "one cycle, double precision": Row(
        "--model.lr_scheduler=OneCycleLR --model.lr_scheduler.max_lr=0.4"
        " --model.lr_scheduler.total_steps=9 --model.interval=step --trainer.precision=64-true",
        slow=True,
    ),
    "AdamW, a learning rate that falls": Row(
        f"{PLATEAU} --model.optimizer=AdamW --trainer.max_epochs=3", slow=True
    ),
    "a dynamic loss scale": Row(
        f"{SCALED} {SCALER}.init_scale=64 {SCALER}.growth_interval=3", (5,), slow=True
    ),
    "an average that starts late": Row(
        f"{EMA} --trainer.callbacks.update_starting_at_step=4", (3, 6)
    ),
    "repeated, random transforms of each image, MixUp and CutMix": Row(
        f"--data.train_transforms+={TRANSFORMS}.RandAugment --data.train_transforms.magnitude=5"
        " --data.repeats=3"
        f" --data.batch_transforms+={TRANSFORMS}.MixUp --data.batch_transforms.alpha=0.2"
        f" --data.batch_transforms+={TRANSFORMS}.CutMix"
    ),
    "a data module and a model that draw in hooks": Row(
        f"{NOISY} {IN_PAIRS} --trainer.val_check_interval=3"
    ),
    "a loader of one's own": Row(f"--data={__name__}.PlacedData {EVERY_THIRD}", (3, 6)),
    "two optimizers by hand": Row(f"--model={__name__}.ByHand {EVERY_THIRD}", (2, 6, 12)),
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
    fit(*flags, "--trainer.default_root_dir=whole")
    expected = outcome(Path("whole/run"))
    steps = expected["last: global_step"]
    for step in row.stops:
        until = [f"--trainer.max_steps={step}"] * (step in row.ends)
        stop_at(step, *flags, *until)
        last = load(LAST)
        assert last["global_step"] == min(step, steps)
        assert not last["about"]["thresholds"]  # they are of a validation with other weights
    fit(*flags)
    require_same_end(RUN, expected)
    assert {"val/loss", "test/accuracy", "train/loss", "last: optimizer_states"} <= expected.keys()


CANNOT_CHANGE = "which cannot change when the run"


@cases(
    "option reason",
    ("--data.batch_size=8", CANNOT_CHANGE),
    ("--model.optimizer.lr=0.5", CANNOT_CHANGE),
    ("--monitor=val/loss", CANNOT_CHANGE),
    ("--callbacks.last_checkpoint=false", "resumes only with --callbacks.last_checkpoint"),
)
def test_what_decides_a_run_cannot_change_when_it_resumes(workplace, capsys, option, reason):
    stop_at(3)
    config = (RUN / "config.yaml").read_text()
    assert reason in one_line(lambda: fit(option), capsys)
    assert load(LAST)["global_step"] == 3
    assert (RUN / "config.yaml").read_text() == config


class WeightedClassifier(ToyClassifier):
    """Begins with weights of a file."""

    def __init__(self, *args: Any, weights: str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        assert weights is None or weights_file(weights).exists()


def test_weights_that_a_run_began_with_are_not_read_again_and_cannot_change(workplace, capsys):
    model, weights = f"--model={__name__}.WeightedClassifier", Path("first.pt")
    weights.touch()
    stop_at(3, model, f"--model.weights={weights}")
    weights.unlink()
    assert CANNOT_CHANGE in one_line(lambda: fit(model, "--model.weights=other.pt"), capsys)
    fit(model)
    assert f"\n    weights: {weights}\n" in (RUN / "config.yaml").read_text()


STOP_EARLY = "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/loss"


@pytest.mark.filterwarnings("ignore:.*created with WeightAveraging", "ignore:Be aware that when")
def test_what_decides_the_numbers_is_named_where_it_changes_and_nothing_else(workplace, capsys):
    def news(step: int, flags: str) -> set[str]:
        capsys.readouterr()
        stop_at(step, *flags.split())
        (line,) = re.findall("^continuing .*", capsys.readouterr().err, re.M)
        return {*re.split(", (?=--)| and ", line.partition("; from here on ")[2])}

    stop_at(1, *STOP_EARLY.split())
    same = (
        "--trainer.enable_progress_bar=true --trainer.logger=CSVLogger"
        " --trainer.num_sanity_val_steps=1 --data.prefetch_factor=3"
        f" --callbacks.last_checkpoint.every_n_steps=50 {STOP_EARLY}"
    )
    assert news(2, same) == {""}
    options = (
        "--trainer.accumulate_grad_batches=2 --trainer.gradient_clip_val=3"
        " --trainer.log_every_n_steps=2"
    )
    assert news(3, f"{options} {STOP_EARLY} --trainer.callbacks.patience=9 {EMA}") == {
        "--trainer.callbacks.EarlyStopping.patience is 9, not 3",
        "--trainer.callbacks is [EarlyStopping, EMAWeightAveraging], not [EarlyStopping]",
        "--trainer.accumulate_grad_batches is 2, not 1",
        "--trainer.gradient_clip_val is 3, not None",
        "--trainer.log_every_n_steps is 2, not 1",
    }
    other = (
        "--trainer.precision=bf16-mixed --callbacks.best_checkpoint=false --trainer.min_epochs=2"
    )
    assert news(4, f"{options} {other}") == {
        "--trainer.callbacks is [], not [EarlyStopping, EMAWeightAveraging]",
        "--trainer.precision is bf16-mixed, not 32-true",
        "--trainer.min_epochs is 2, not None",
        "--callbacks.best_checkpoint is False, not True",
    }


@pytest.mark.filterwarnings("ignore:.*You have overridden.*")
def test_no_two_batches_draw_alike(workplace):
    NoisyClassifier.drawn.clear()
    fit(*NOISY.split())
    assert len(set(NoisyClassifier.drawn)) == len(NoisyClassifier.drawn) == STEPS
