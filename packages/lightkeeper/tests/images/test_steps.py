"""Steps let nothing that is not finite reach the weights, and are logged; averages are exact."""

import math
from copy import deepcopy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    LambdaCallback,
)
from torch import Tensor

from tests.images.test_checkpoints import pretend
from tests.images.test_resume import SCALED
from tests.toy import (
    BEST,
    LAST,
    RUN,
    ToyClassifier,
    ToyData,
    cases,
    curve,
    differences,
    fit,
    load,
    one_line,
    outcome,
    read_json,
    require_same_end,
    toy,
    toy_trainer,
)


class Witness(Callback):
    """Remembers the weights before each step, by step."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.weights[trainer.global_step + 1] = {
            name: value.detach().clone() for name, value in pl_module.named_parameters()
        }


class BadGradient(Callback):
    """Puts infinity into a gradient in some steps, counted from 1."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step + 1 in self.steps:
            pl_module.network.fc.bias.grad[0] = math.inf


@cases("accumulate step", (1, 7), (2, 4))
def test_a_bad_loss_stops_the_run_which_resumes_from_before_that_step(
    workplace, monkeypatch, capsys, accumulate, step
):
    flags = [
        "--data.batch_size=4",
        "--data.size=16",
        f"--trainer.accumulate_grad_batches={accumulate}",
        "--callbacks.last_checkpoint.every_n_steps=1",
    ]
    own_step = ToyClassifier.training_step

    def spoilt_step(model, batch, batch_idx):
        spoilt = batch_idx % accumulate == 0 and model.trainer.global_step + 1 == step
        return own_step(model, batch, batch_idx) * (math.nan if spoilt else 1.0)

    fit(*flags, "--trainer.default_root_dir=whole")
    with monkeypatch.context() as patch:
        patch.setattr(ToyClassifier, "training_step", spoilt_step)
        said = one_line(lambda: fit(*flags), capsys)
    assert f"training stopped at step {step}:" in said
    last, best = load(LAST), load(BEST)
    assert last["global_step"] == step - 1
    assert all(math.isfinite(value) for _, value in curve(RUN, "train/loss"))
    weights = [*last["state_dict"].values(), *best["state_dict"].values()]
    assert all(value.isfinite().all() for value in weights)
    fit(*flags)
    require_same_end(RUN, outcome(RUN.parents[1] / "whole/run"))


OFTEN = (
    "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.save_weights_only=true"
    " --trainer.callbacks.every_n_train_steps=1 --trainer.callbacks.save_top_k=-1"
)


@cases("flags step saved", ("", 4, set()), (OFTEN, 3, {1, 2}))
def test_weights_that_are_not_finite_are_neither_validated_nor_saved_by_any_callback(
    workplace, capsys, flags, step, saved
):
    def spoil(trainer: Any, model: Any, *_: Any) -> None:  # training never reads statistics
        if trainer.global_step == 3:
            model.network.bn1.running_mean[0] = math.inf

    validated = Mock()
    callbacks = [LambdaCallback(on_train_batch_end=spoil, on_validation_end=validated)]
    said = one_line(lambda: fit(*flags.split(), callbacks=callbacks), capsys)
    assert f"network.bn1.running_mean has values that are not finite after step {step};" in said
    assert "to resume" not in said
    assert {load(path)["global_step"] for path in RUN.rglob("*.ckpt")} == saved
    assert not validated.called


@cases(
    "device step stopped",  # of the 4 steps before a validation, of which the last is logged
    ("cpu", 3, 3),
    ("other", 3, 4),
    ("other", 4, 4),
)
def test_a_bad_gradient_of_a_finite_loss_is_neither_validated_nor_saved(
    workplace, monkeypatch, capsys, device, step, stopped
):
    """Another device than a CPU is waited for where a step is logged."""
    monkeypatch.setattr(ToyClassifier, "device", Mock(type=device))
    witness, validated = Witness(), Mock()
    callbacks = [BadGradient(step), witness, LambdaCallback(on_validation_end=validated)]
    said = one_line(lambda: fit("--trainer.log_every_n_steps=4", callbacks=callbacks), capsys)
    assert f"step {stopped}" in said
    assert "not finite" in said
    assert max(witness.weights) == stopped
    assert (validated.called, [*RUN.rglob("*.ckpt")]) == (False, [])


def test_an_infinite_loss_with_finite_gradients_stops_the_run_before_its_validation(
    workplace, monkeypatch, capsys
):
    loss = ToyClassifier.loss
    monkeypatch.setattr(ToyClassifier, "loss", lambda *args: loss(*args) + math.inf)
    callbacks = [LambdaCallback(on_validation_end=(validated := Mock()))]
    said = one_line(lambda: fit(callbacks=callbacks), capsys)
    assert "train/loss is not finite" in said
    assert (validated.called, [*RUN.rglob("*.ckpt")]) == (False, [])


@cases("flags", "--trainer.limit_train_batches=1 --trainer.max_epochs=1", "--trainer.max_steps=1")
def test_a_last_step_after_which_finite_weights_overflow_ends_the_run_before_its_best_is_saved(
    workplace, capsys, flags
):
    """The second ends within an epoch, so that its validation is behind training."""
    flags += " --model.optimizer=SGD --model.optimizer.lr=1e30"
    said = one_line(lambda: fit(*flags.split()), capsys)
    assert "val/loss is not finite" in said
    assert "to resume" not in said
    assert not BEST.exists()
    assert not (RUN / "metrics.json").exists()


def test_a_share_of_few_batches_says_how_many_they_are(workplace, capsys):
    command = fit("--trainer.limit_train_batches=0.3", "--trainer.max_epochs=1")
    batches = len(command.datamodule.train_dataloader())
    steps = load(LAST)["global_step"]
    assert steps == int(0.3 * batches)
    said = f"each epoch has {steps} of the {batches} training batches, a share of 0.3 rounded down"
    assert said in capsys.readouterr().err


def spoil_test(trainer: Any, model: Any, *_: Any) -> None:
    model.network.fc.bias.data[:] = torch.tensor([3e38, -3e38, 0])  # their difference is infinite


def test_a_test_whose_loss_is_not_finite_is_an_error_unless_that_is_asked_for(workplace, capsys):
    callbacks = [LambdaCallback(on_test_start=spoil_test)]
    said = one_line(lambda: fit(callbacks=callbacks), capsys)
    assert "test/loss is not finite; " in said
    assert not (RUN / "metrics.json").exists()
    fit("--callbacks.stop_on_non_finite=false", callbacks=callbacks)
    assert not math.isfinite(read_json(RUN / "metrics.json")["test"]["loss"])


def test_with_a_loss_scaler_a_validation_that_overflows_is_noted(workplace, monkeypatch, capsys):
    """Numbers of float16 end at 65504, which a network may exceed until it has learnt a little."""
    pretend(monkeypatch, [math.inf, 1.0, 1.0], [0.25, 0.5, 0.5])
    fit(*SCALED.split())
    said = capsys.readouterr().err
    assert said.count("after step 4, val/loss is not finite") == said.count("not finite") == 1


@pytest.mark.filterwarnings(
    "ignore:.*lr_scheduler.step.*before.*optimizer.step.*"
)  # of a first skipped step
def test_a_loss_scaler_may_skip_steps_until_its_scale_is_below_one(workplace, capsys):
    witness = Witness()
    scaled = [*SCALED.split(), "--trainer.plugins.scaler.init_scale=4"]
    callbacks = [BadGradient(1, 3, 4, 5), witness]
    said = one_line(lambda: fit(*scaled, callbacks=callbacks), capsys)
    assert "training stopped at step 5: the gradient is not finite" in said
    weights = witness.weights
    skipped = [step for step in range(1, 5) if not differences(weights[step], weights[step + 1])]
    assert skipped == [1, 3, 4]


class Linear(ToyClassifier):
    """A layer without statistics, whose mean gradient does not depend on the batches of a step."""

    def build_network(self, num_classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, num_classes))


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
@cases(
    "batches accumulate changes",
    (4, 2, {}),
    (1, 4, {}),
    (3, 2, {}),
    (4, 3, {}),
    (4, 1, {0: 3, 1: 2, 2: 8}),
)
def test_each_step_has_the_mean_gradient_of_its_batches_as_in_a_plain_loop(
    batches, accumulate, changes
):
    model = toy(Linear)
    plain = deepcopy(model)
    optimizer = plain.configure_optimizers()
    served: list[tuple[Tensor, Tensor]] = []
    witness = LambdaCallback(
        on_train_batch_start=lambda *args: served.append((args[2].images, args[2].labels))
    )
    options = {"max_epochs": 3, "limit_train_batches": batches, "limit_val_batches": 0}
    callbacks = [witness, *([GradientAccumulationScheduler(changes)] if changes else [])]
    run = toy_trainer(accumulate_grad_batches=accumulate, callbacks=callbacks, **options)
    run.fit(model, datamodule=ToyData())
    for epoch in range(3):
        size = changes.get(epoch, accumulate)
        for start in range(0, batches, size):
            at = slice(epoch * batches + start, epoch * batches + min(start + size, batches))
            images, labels = (torch.cat(field) for field in zip(*served[at], strict=True))
            optimizer.zero_grad()
            plain.loss(plain(images), labels).mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.network.state_dict(), plain.network.state_dict())


def real(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the network's numbers, without the counts of batches, of which there is no mean."""
    return {
        name: value.clone()
        for name, value in state.items()
        if name.startswith("network.") and value.is_floating_point()
    }


class Averaged(Callback):
    """An exponential moving average in a plain loop, and what is validated."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.average: dict[str, Tensor] | None = None
        self.expected: dict[int, dict[str, Tensor]] = {}  # by epoch
        self.validated: dict[int, dict[str, Tensor]] = {}

    def on_train_batch_end(self, trainer, pl_module, *_) -> None:
        self.newest = real(pl_module.state_dict())
        if trainer.global_step >= self.start:
            before = self.average or self.newest
            self.average = {
                name: 0.9 * before[name] + 0.1 * value for name, value in self.newest.items()
            }

    def on_validation_batch_end(self, trainer, pl_module, *_) -> None:
        self.expected[trainer.current_epoch] = self.average or self.newest
        self.validated[trainer.current_epoch] = real(pl_module.state_dict())


@cases("start", 1, 7)
def test_the_average_is_that_of_a_plain_loop_or_else_the_newest(workplace, start):
    """In epochs of four steps; steps are counted from 0 by the option, and from 1 here."""
    by_hand = Averaged(start)
    fit(
        *("--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.9"),
        f"--trainer.callbacks.update_starting_at_step={start - 1}",
        *("--model.optimizer.lr=0.5", "--trainer.max_epochs=3"),
        callbacks=[by_hand],
    )
    assert len(by_hand.validated) == 3
    torch.testing.assert_close(by_hand.validated, by_hand.expected)
    best = load(BEST)
    torch.testing.assert_close(real(best["state_dict"]), by_hand.expected[best["epoch"]])
