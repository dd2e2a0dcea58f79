"""What a module keeps from one batch to the next resumes with it, though Lightning saves none of it."""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from lightkeeper.exact import (
    AtomicCheckpointIO,
    ExactDataLoader,
    ExactTraining,
    LastCheckpoint,
    ResumingCSVLogger,
    ResumingTensorBoardLogger,
    newest_checkpoint,
)
from lightkeeper.exact._metric_states import load_metrics, save_metrics
from lightkeeper.exact._own_tensors import gradients_of
from lightkeeper.exact._reading import read_file
from lightkeeper.exact._training import restore_numbers
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    LambdaCallback,
    ModelCheckpoint,
)
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, NAdam
from torch.utils.data import DataLoader
from torchmetrics import (
    ExplainedVariance,
    MeanMetric,
    MeanSquaredError,
    Metric,
    PearsonCorrCoef,
    R2Score,
)
from torchmetrics.aggregation import RunningMean
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.wrappers import ClasswiseWrapper, MetricTracker, MinMaxMetric, Running

from tests.toy import cases, curve, differences, load, rows, toy_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:Checkpoint directory"
)


class Kept(LightningModule):
    """Sums gradients up by hand, wraps metrics as torchmetrics does, logs a value in few batches."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.linear = nn.Linear(3, 3)
        self.each = ClasswiseWrapper(MulticlassAccuracy(3, average=None))
        self.range = MinMaxMetric(MulticlassAccuracy(3, average="micro"))
        self.mean = RunningMean(4)
        self.window = Running(MulticlassAccuracy(3, average="micro"), window=3)
        self.history = MetricTracker(MulticlassAccuracy(3, average="micro"))

    def on_train_epoch_start(self) -> None:
        self.history.increment()

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        inputs = torch.stack([batch.sin(), batch.cos(), (7 * batch).sin()], 1)
        logits, labels = self.linear(inputs), batch.long() % 3
        loss = cross_entropy(logits, labels)
        epoch: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": len(batch)}
        self.log("loss", loss, **epoch)
        self.manual_backward(loss / 4)
        if (batch_idx + 1) % 4 == 0:
            optimizer: Any = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()
        self.log("late", loss, **epoch)  # behind what the hook logs, in a batch of a step
        for metric in (self.each, self.range, self.window, self.history):
            metric.update(logits, labels)
        self.mean.update(loss)
        self.log_dict({"mean": self.mean.compute(), "window": self.window.compute()})
        if batch_idx % 2 == 0:
            self.log("rare", loss)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("norm", self.linear.weight.norm(), on_step=False, on_epoch=True, batch_size=4)

    def on_train_epoch_end(self) -> None:
        extremes = self.range.compute()
        self.log_dict({**self.each.compute(), "least": extremes["min"], "most": extremes["max"]})
        self.log_dict({f"epoch {n}": x for n, x in enumerate(self.history.compute_all().tolist())})
        for metric in (self.each, self.range):
            metric.reset()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val/weight", self.linear.weight.sum(), on_step=True)  # by batches of validations

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=0.5)


class Logged(LightningModule):
    """Logs a value and a metric over epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        inputs = torch.stack([batch.sin(), batch.cos(), batch], 1)
        logits, labels = self.linear(inputs), batch.long() % 3
        self.accuracy.update(logits, labels)
        epoch: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": len(batch)}
        self.log("accuracy", self.accuracy, **epoch)
        self.log("loss", loss := cross_entropy(logits, labels), **epoch)
        return loss

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=0.01)


class StopAfter(Callback):
    """Asks the run to stop after a batch, counted over all epochs."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.total.ready == self.batch:
            os.kill(os.getpid(), signal.SIGTERM)


def numbers(trainer: Trainer) -> ExactDataLoader:
    return ExactDataLoader(cast(Any, torch.arange(40.0)), trainer, batch_size=4, shuffle=True)


def resuming(
    folder: Path, *callbacks: Callback, every: int | None = None, **options: Any
) -> Trainer:
    """The trainer of a run that keeps all in its folder."""
    return toy_trainer(
        default_root_dir=folder,
        callbacks=[LastCheckpoint(every_n_steps=every), *callbacks],
        plugins=AtomicCheckpointIO(folder),
        **options,
    )


def train(
    folder: Path,
    stop: int,
    build: Callable[[], LightningModule],
    *callbacks: Callback,
    data: Callable[[Trainer], Any] = numbers,
    val: Callable[[Trainer], Any] | None = None,
    **options: Any,
) -> Trainer:
    """Trains a model in a folder, or goes on; the run stops after a batch, unless it is 0."""
    torch.manual_seed(0)
    trainer = resuming(folder, StopAfter(stop), *callbacks, **options)
    evaluated = val(trainer) if val else None
    trainer.fit(build(), data(trainer), evaluated, ckpt_path=newest_checkpoint(folder))
    return trainer


def train_and_log(
    folder: Path, stop: int, build: Callable[[], LightningModule], *args: Any, **options: Any
) -> dict[str, Any]:
    """Trains for three epochs of ten batches; returns the weights and the rows that were logged."""
    logger = ResumingCSVLogger(folder, name="csv", version="")
    logged: Any = {"max_epochs": 3, "logger": logger, "log_every_n_steps": 2}
    trainer = train(folder, stop, build, *args, **logged, **options)
    lines = (folder / "csv" / "metrics.csv").read_text().splitlines()
    return {**trainer.lightning_module.state_dict(), "csv": lines}


def require_same_end(end: Callable[[Path, int], Any], folder: Path, *stops: int) -> Any:
    """Requires that a run ends alike where it is stopped after some batches; returns how."""
    whole = end(folder / "whole", 0)
    for stop in stops:
        with pytest.raises(SystemExit, match="75"):
            end(folder / "stopped", stop)
    again = end(folder / "stopped", 0)
    assert not differences(whole, again), "\n".join(differences(whole, again))
    return whole


@pytest.mark.parametrize("stops", [(6, 7), (13, 17, 29)])
def test_a_run_that_stops_between_two_batches_ends_in_the_same_bits(tmp_path, stops):
    def eight(trainer: Trainer) -> ExactDataLoader:
        return ExactDataLoader(cast(Any, range(8)), trainer, batch_size=4)

    require_same_end(partial(train_and_log, build=Kept, val=eight), tmp_path, *stops)


@pytest.mark.parametrize("every", [None, 7, 10])
def test_an_epoch_counts_itself_alone_from_whichever_checkpoint_a_run_goes_on(workplace, every):
    """One that Lightning saves at the end of an epoch has the sums of that epoch."""

    def ends(checkpoint: Path | None = None) -> list[dict[str, float]]:
        found: list[dict[str, float]] = []
        kept = ModelCheckpoint("kept", save_top_k=-1, every_n_train_steps=every)
        look = LambdaCallback(
            on_train_epoch_end=lambda trainer, _: found.append(dict(trainer.callback_metrics))
        )
        trainer = toy_trainer(
            max_epochs=3,
            callbacks=[LastCheckpoint(), kept, look],
            plugins=AtomicCheckpointIO("."),
            enable_checkpointing=True,
        )
        torch.manual_seed(0)
        trainer.fit(Logged(), numbers(trainer), ckpt_path=checkpoint)
        return found

    whole = ends()
    for file in [*Path("kept").glob("*.ckpt")]:
        resumed = ends(file)
        assert differences(whole[3 - len(resumed) :], resumed) == []


def longest(trainer: Trainer) -> CombinedLoader:
    """Two sets, of which the shorter one waits for the other's end."""
    short = ExactDataLoader(cast(Any, torch.arange(12.0)), trainer, batch_size=4, shuffle=True)
    return CombinedLoader({"numbers": numbers(trainer), "short": short}, "max_size")


class Parts(Metric):
    """Keeps tensors of several shapes in a list, as metrics of boxes do, and counts them."""

    parts: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("parts", [], dist_reduce_fx=None)

    def update(self, values: Tensor) -> None:
        self.parts += [values[:1], values.outer(values[: 1 + int(values[0]) % 3])]

    def compute(self) -> Tensor:
        numbers = enumerate(self.parts, 1)
        return torch.stack([place * part.double().sum() for place, part in numbers]).sum()


class Rarely(Logged):
    """Logs values at the beginning of an epoch alone, in double precision, of two sets."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.parts = MeanMetric(), Parts()

    def on_train_epoch_start(self) -> None:
        self.log("begun", float(self.current_epoch))
        self.log("most", torch.tensor(-1.0 - self.current_epoch), reduce_fx=max)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses = [
            super(Rarely, self).training_step(b.double(), 0)
            for b in batch.values()
            if b is not None
        ]
        if batch_idx == 0:
            self.log("first", losses[0], on_step=True, on_epoch=True, batch_size=4)
        self.mean.update(losses[0])
        self.parts.update(batch["numbers"])
        if batch_idx % 5 == 0:
            self.log_dict({"mean": self.mean, "parts": self.parts}, on_step=False, on_epoch=True)
        return torch.stack(losses).sum() * torch.rand(())  # as dropout draws


@pytest.mark.parametrize("stop", [3, 9, 17])
def test_what_only_the_beginning_of_an_epoch_has_logged_or_loaded_counts_to_its_end(tmp_path, stop):
    def ends(folder: Path, stop: int) -> dict[str, Any]:
        early = EarlyStopping("begun", patience=9, mode="max", check_on_train_epoch_end=True)
        corrected = ExactTraining(), early
        return train_and_log(folder, stop, Rarely, *corrected, data=longest, precision="64-true")

    whole = require_same_end(ends, tmp_path, stop, stop + 1)
    assert {"begun", "first_epoch", "mean", "most", "parts"} <= {*whole["csv"][0].split(",")}


class Configured(Logged):
    """Makes its layer in the hook for large ones, which a WeightAveraging calls, too."""

    def __init__(self) -> None:
        super().__init__()
        del self.linear

    def configure_model(self) -> None:
        if not hasattr(self, "linear"):
            self.linear = nn.Linear(3, 3)


@pytest.mark.filterwarnings("ignore:.*overrides the configure_model callback")
def test_weights_of_64_bits_resume_that_an_average_has_configured(tmp_path):
    def end(folder: Path, stop: int) -> dict[str, Any]:
        average = EMAWeightAveraging(decay=0.9)
        parts = ExactTraining(), average
        trainer = train(folder, stop, Configured, *parts, max_epochs=2, precision="64-true")
        return trainer.lightning_module.state_dict()

    require_same_end(end, tmp_path, 3, 12)


def test_a_run_that_had_ended_has_its_average_its_metrics_and_its_optimizer_again(tmp_path):
    def end() -> dict[str, Any]:
        parts = ExactTraining(), EMAWeightAveraging(decay=0.9)
        trainer = train(tmp_path, 0, Adaptive, *parts, precision="64-true")
        kept = {"logged": dict(trainer.callback_metrics), **trainer.lightning_module.state_dict()}
        return kept | {"optimizer": trainer.optimizers[0].state_dict()}

    assert differences(end(), end()) == []


class Validated(Logged):
    """Counts with one metric what validations and a test see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = MulticlassAccuracy(3, average="micro")

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        logits = self.linear(torch.stack([batch.sin(), batch.cos(), batch], 1))
        self.seen.update(logits, batch.long() % 3)
        self.log("seen", self.seen, batch_size=len(batch))

    test_step = validation_step


def test_a_validation_counts_once_from_whichever_checkpoint_a_run_goes_on(workplace):
    """One that Lightning saves as a validation ends has what that has counted."""

    def values(checkpoint: Path | None = None) -> list[float]:
        found: list[float] = []
        look = LambdaCallback(
            on_validation_end=lambda trainer, _: found.append(
                float(trainer.callback_metrics["seen"])
            )
        )
        kept = ModelCheckpoint("kept", save_top_k=-1, every_n_epochs=1)
        trainer = toy_trainer(
            callbacks=[LastCheckpoint(), kept, look],
            plugins=AtomicCheckpointIO("."),
            enable_checkpointing=True,
            val_check_interval=5,
        )
        data = ExactDataLoader(cast(Any, torch.arange(11.0)), trainer, batch_size=4)
        torch.manual_seed(0)
        trainer.fit(model := Validated(), numbers(trainer), data, ckpt_path=checkpoint)
        trainer.test(model, data, verbose=False)
        return [*found, float(trainer.callback_metrics["seen"])]

    whole = values()
    assert len({*whole}) > 1
    for file in [*Path("kept").glob("*.ckpt")]:
        resumed = values(file)
        assert resumed == whole[-len(resumed) :], file


def test_gradients_that_sum_up_alike_are_told_apart(monkeypatch):
    told: list[object] = []

    def gather(value: object) -> list[object]:
        told.append(value)
        return [value]

    monkeypatch.setattr("lightkeeper.exact._own_tensors.gather", gather)
    for gradient in ([1.0, 2.0], [2.0, 1.0], [2.0, 1.0]):
        module: Any = nn.Linear(2, 1, bias=False)
        module.weight.grad = torch.tensor([gradient])
        gradients_of(module)
    assert told[0] != told[1] == told[2]
    rows: Any = nn.Embedding(3, 1, sparse=True)
    (2 * rows(torch.tensor([1]))).sum().backward()
    assert gradients_of(rows)[0]["weight"].tolist() == [[0], [2], [0]]


class Curriculum(Logged):
    """Skips the rest of each epoch after some batches, as ``on_train_batch_start`` may."""

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> int | None:
        return -1 if batch_idx == 6 else None

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val", float(self.trainer.global_step))


def test_batches_that_are_skipped_count_for_the_next_validation(tmp_path):
    def validations(folder: Path, stop: int = 0) -> list[int]:
        steps: list[int] = []
        look = LambdaCallback(
            on_validation_end=lambda trainer, _: steps.append(trainer.global_step)
        )
        with pytest.raises(SystemExit) if stop else nullcontext():
            train(
                folder,
                stop,
                Curriculum,
                look,
                val=numbers,
                max_epochs=4,
                check_val_every_n_epoch=None,
                val_check_interval=5,
                num_sanity_val_steps=0,
            )
        return steps

    whole = validations(tmp_path / "whole")
    before = validations(tmp_path / "stopped", 16)
    assert before + validations(tmp_path / "stopped") == whole


class Typed(LightningModule):
    """Keeps and logs values of other types than its weights have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.mean, self.auroc, self.val_mean = MeanMetric(), MulticlassAUROC(3), MeanMetric()
        self.losses: list[float] = []
        self.validated: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        inputs = torch.stack([batch.sin(), batch.cos(), (7 * batch).sin()], 1)
        logits, labels = self.linear(inputs.to(self.dtype)).float(), batch.long() % 3
        self.auroc.update(logits.detach().softmax(1), labels)
        self.mean.update(loss := cross_entropy(logits, labels), weight=3)  # a sum above 256
        self.losses.append(float(loss.detach()))
        self.log_dict({"mean": self.mean, "auroc": self.auroc}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        weights = self.linear.weight.detach().double()
        self.log_dict({"val/double": weights.sum() / 3, "val/half": weights.bfloat16().max()})
        self.val_mean.update(
            value := batch.to(torch.promote_types(self.linear.weight.dtype, torch.float32)).sin()
            + 1.5
        )
        self.validated += value.tolist()
        self.log("val/mean", self.val_mean)

    def configure_optimizers(self) -> NAdam:  # it keeps a number in float32
        return NAdam(self.parameters(), lr=0.02)


@pytest.mark.parametrize(
    "precision", [pytest.param("32-true", marks=pytest.mark.slow), "64-true", "bf16-true"]
)
def test_whatever_is_of_another_type_than_the_weights_resumes_and_counts_in_it(tmp_path, precision):
    models: list[Typed] = []  # of each training

    def end(folder: Path, stop: int) -> dict[str, Any]:
        torch.manual_seed(0)
        trainer = resuming(
            folder,
            ExactTraining(),
            StopAfter(stop),
            max_epochs=3,
            precision=precision,
            check_val_every_n_epoch=2,
            num_sanity_val_steps=0,
        )
        data = ExactDataLoader(cast(Any, torch.arange(200.0)), trainer, batch_size=2, shuffle=True)
        models.append(Typed())
        trainer.fit(models[-1], data, data, ckpt_path=newest_checkpoint(folder))
        saved = load(folder / "checkpoints" / "last.ckpt")
        kept = {name: saved[name] for name in ("state_dict", "optimizer_states")}
        return {**kept, "metrics": dict(trainer.callback_metrics)}

    whole = require_same_end(end, tmp_path, 250)  # after the validation, within an epoch
    rounded = 1e-12 if precision == "64-true" else 1e-6
    for name, values in (("mean", models[0].losses[-100:]), ("val/mean", models[0].validated)):
        expected = sum(values) / len(values)
        assert float(whole["metrics"][name]) == pytest.approx(expected, rel=rounded)


@pytest.mark.parametrize("stop", [7, 9, 11])
def test_a_model_checkpoint_saves_once_in_a_step_wherever_a_run_stops(tmp_path, stop):
    def saved(folder: Path, stop: int) -> dict[str, Any]:
        kept = ModelCheckpoint(folder / "kept", save_top_k=-1, every_n_train_steps=1)
        train(
            folder,
            stop,
            Logged,
            kept,
            every=1,
            accumulate_grad_batches=3,
            enable_checkpointing=True,
        )
        return {path.name: load(path)["loops"] for path in (folder / "kept").iterdir()}

    assert len(require_same_end(saved, tmp_path, stop)) == 8


class Scored(Logged):
    """Logs its loss in validation, too."""

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        logits = self.linear(torch.stack([batch.sin(), batch.cos(), batch], 1))
        self.log("val/loss", cross_entropy(logits, batch.long() % 3), batch_size=len(batch))


@cases(  # in epochs without validation, and behind one; the last two while a file waits for one
    "sanity every stop",
    *((0, 5, 3), (2, 5, 32), (0, 5, 47), (2, 3, 47)),
    *((0, 15, 17), (2, 15, 17)),
)
def test_a_model_checkpoint_scores_the_end_of_an_epoch_after_its_validation(
    tmp_path, sanity, every, stop
):
    def saved(folder: Path, stop: int) -> list[str]:
        all_of: dict[str, Any] = {"save_top_k": -1, "every_n_train_steps": every}
        name = "{step}-{val/loss:.6f}"
        kept = [
            ModelCheckpoint(folder / "best", name, "val/loss", **all_of),
            ModelCheckpoint(
                folder / "other", name, "loss", save_on_train_epoch_end=False, **all_of
            ),
            ModelCheckpoint(folder / "plain", **all_of),
        ]
        train(
            folder,
            stop,
            Scored,
            *kept,
            every=1,
            val=numbers,
            max_epochs=6,
            check_val_every_n_epoch=2,
            num_sanity_val_steps=sanity,
            enable_checkpointing=True,
        )
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ckpt"))

    assert len(require_same_end(saved, tmp_path, stop)) > 7


class Stepping(Logged):
    """Logs the loss of each step."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        logits = self.linear(torch.stack([batch.sin(), batch.cos(), batch], 1))
        self.log("loss", loss := cross_entropy(logits, batch.long() % 3))
        return loss


@pytest.mark.filterwarnings("ignore:Experiment logs dir")
@pytest.mark.parametrize("logger", [ResumingCSVLogger, ResumingTensorBoardLogger])
def test_further_fits_of_one_trainer_go_on_with_its_curve_from_where_they_begin(tmp_path, logger):
    kept = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    trainer = resuming(
        tmp_path,
        kept,
        max_epochs=2,
        logger=logger(tmp_path, name="", version=""),
        log_every_n_steps=1,
        enable_checkpointing=True,
    )
    trainer.fit(model := Stepping(), numbers(trainer))
    for epochs, begin in ((3, tmp_path / "epoch=0.ckpt"), (4, newest_checkpoint(tmp_path))):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(model, numbers(trainer), ckpt_path=begin)
    if logger is ResumingCSVLogger:
        steps = [int(row["step"]) for row in rows(tmp_path / "metrics.csv") if row["loss"]]
    else:
        steps = [step for step, _ in curve(tmp_path, "loss")]
    assert steps == [*range(40)]


@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_run_that_resumes_saves_no_last_checkpoint_of_ones_own_once_more(tmp_path, save_last):
    def end(folder: Path, stop: int) -> dict[str, Any]:
        kept = ModelCheckpoint(folder / "own", save_last=save_last, every_n_train_steps=7)
        train(folder, stop, Stepping, kept, max_epochs=3, enable_checkpointing=True)
        last = folder / "own" / "last.ckpt"
        return {"step": read_file(last)["global_step"], "link": last.is_symlink()}

    assert require_same_end(end, tmp_path, 8, 29)["step"] == 28


@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_last_checkpoint_of_ones_own_that_is_gone_is_saved_as_training_ends(tmp_path, save_last):
    last = tmp_path / "own" / "last.ckpt"
    for stop in (29, 0):
        last.unlink(missing_ok=True)
        kept = ModelCheckpoint(last.parent, save_last=save_last, every_n_train_steps=7)
        with pytest.raises(SystemExit) if stop else contextlib.nullcontext():
            train(tmp_path, stop, Stepping, kept, max_epochs=3, enable_checkpointing=True)
    assert last.exists()


class Placed(DataLoader[Any]):
    """Knows its place, as torchdata's loaders; its state is whatever it likes."""

    begins = place = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.place, self.begins = self.begins, 0
        return self.left(super().__iter__())

    def left(self, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number >= self.place:
                self.place += 1
                yield batch

    def state_dict(self) -> int:
        return self.place

    def load_state_dict(self, state: int) -> None:
        self.begins = state


class Summing(Logged):
    """Keeps gradients over two batches, though Lightning steps, and draws in a step and a hook."""

    def on_after_batch_transfer(self, batch: Tensor, dataloader_idx: int) -> Tensor:
        return batch + torch.rand(()) / 9

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * random.random()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if batch_idx % 2 == 0:
            optimizer.zero_grad()


class Asking(Summing):
    """Has Lightning open the loaders before it reads a checkpoint, as many schedules do."""

    def configure_optimizers(self) -> SGD:
        assert self.trainer.estimated_stepping_batches > 0
        return super().configure_optimizers()


class Noisy:
    """Collates, and adds random numbers of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def __call__(self, samples: list[Tensor]) -> Tensor:
        return torch.stack(samples) + torch.rand(1, generator=self.generator)


def by_weight(epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(epoch)
    return torch.multinomial(torch.arange(1, 41.0), 40, replacement=True, generator=generator)


DATA: Any = torch.arange(40.0)
LOADERS: dict[str, Callable[[Trainer], Any]] = {
    "in order": lambda trainer: ExactDataLoader(DATA[:38], trainer, batch_size=4),
    "of one's own": lambda trainer: Placed(DATA, 4),
    "drawn by weight": lambda trainer: ExactDataLoader(DATA, trainer, 4, draw=by_weight),
    "shuffled, of noise": lambda trainer: ExactDataLoader(
        DATA, trainer, batch_size=4, shuffle=True, collate_fn=Noisy()
    ),
}


@pytest.mark.parametrize("build", [Summing, Asking])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_goes_on_with_the_next_batch_of_whichever_loader(tmp_path, kind, build, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")  # as seed_everything

    def end(folder: Path, stop: int) -> dict[str, Any]:
        trainer = train(folder, stop, build, ExactTraining(), data=LOADERS[kind], max_epochs=3)
        return trainer.lightning_module.state_dict()

    require_same_end(end, tmp_path, 3, 10, 11, 25)


class Counted(Metric):
    """Counts what it sees, as a metric that leaves torchmetrics' defaults and is saved."""

    number: Tensor
    each: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("number", torch.tensor(0), dist_reduce_fx="sum", persistent=True)
        self.add_state("each", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, target: Tensor) -> None:
        self.number += len(predicted)
        self.each = self.each + (predicted - target).sum(0)

    def compute(self) -> Tensor:
        return torch.stack([self.number, *self.each])


@cases(
    "make",
    Counted,
    lambda: R2Score(multioutput="raw_values"),
    lambda: ExplainedVariance(multioutput="raw_values"),
    lambda: 2 * MeanSquaredError(num_outputs=2),
)
@pytest.mark.parametrize("processes", [1, 2])
def test_what_each_process_has_counted_is_counted_on_by_however_many(make, processes):
    values = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(0))
    *before, again, whole = (nn.ModuleList([make()]) for _ in range(processes + 2))
    saved = []
    for module, batch in zip(before, values, strict=False):
        cast(Any, module[0]).update(batch, batch.roll(1))
        saved += save_metrics(module)
    for batch in values[:processes]:
        cast(Any, whole[0]).update(batch, batch.roll(1))
    again.load_state_dict(before[0].state_dict())
    load_metrics(cast(Any, Mock(world_size=1, global_rank=0)), again, saved)
    found, expected = (cast(Any, module[0]).compute() for module in (again, whole))
    torch.testing.assert_close(found, expected)


def test_what_cannot_be_merged_is_left_out_and_said(capsys):
    first, second, again = (nn.ModuleList([PearsonCorrCoef()]) for _ in range(3))
    for module, values in ((first, torch.arange(9.0)), (second, torch.rand(9))):
        cast(Any, module[0]).update(values, values.square())
    saved = save_metrics(first) + save_metrics(second)
    load_metrics(cast(Any, Mock(world_size=1, global_rank=0)), again, saved)
    assert "what 0 had counted in this epoch is left out" in capsys.readouterr().err
    assert cast(Any, again[0]).compute() == cast(Any, first[0]).compute()


class Adaptive(Logged):
    """Has an optimizer with states."""

    def configure_optimizers(self) -> Any:
        return NAdam(self.parameters(), lr=0.02)


def test_a_second_fit_follows_one_that_found_its_run_finished(tmp_path):
    def end(folder: Path) -> dict[str, Any]:
        trainer = train(folder, 0, Adaptive, max_epochs=1)
        trainer.fit_loop.max_epochs = 2
        trainer.fit(trainer.lightning_module, numbers(trainer))
        return trainer.lightning_module.state_dict()

    whole = end(tmp_path / "whole")
    train(tmp_path / "stopped", 0, Adaptive, max_epochs=1)
    assert differences(whole, end(tmp_path / "stopped")) == []


def test_numbers_of_optimizers_that_other_processes_have_are_theirs():
    optimizer = SGD(nn.Linear(1, 1).parameters(), 0.1)
    restore_numbers(cast(Any, Mock(optimizers=[optimizer])), [{"state": {0: None}}])
