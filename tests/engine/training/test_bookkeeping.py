"""Training is logged once an epoch at least; averages of weights are exact, and are what ``fit`` reports."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LambdaCallback

from project.engine.run.loggers import is_logged
from tests.conftest import cases, evaluate
from tests.engine.training.test_resume import SWA
from tests.model.test_classifier import Memory, linear, trainer
from tests.small import load, one_line, small
from tests.stress import SmallNetwork

RUN, START = Path("runs/run"), "--trainer.callbacks.update_starting_at"
EMA = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.9", "--model.optimizer.lr=0.5"]


@cases("every changes", (100, {0: 1}), (100, {0: 1, 1: 2}), (100, {0: 4, 2: 1}), (0, {0: 1, 1: 2}))
def test_every_epoch_is_logged_however_many_steps_it_has(every, changes):
    logged: list[int] = []
    witness = LambdaCallback(on_train_batch_end=lambda run, *_: logged.extend([run.current_epoch] * is_logged(run)))
    callbacks = [GradientAccumulationScheduler(changes), witness]
    run = trainer(max_epochs=3, limit_val_batches=0, log_every_n_steps=every, callbacks=callbacks)
    run.fit(linear(lr_scheduler_interval="epoch"), datamodule=Memory())
    assert {*logged} == ({0, 1, 2} if every else set())
    assert run.log_every_n_steps == every  # as the next training with this trainer may be longer


def real(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of weights and statistics, without the counts of batches, of which there is no mean."""
    return {name: value.clone() for name, value in state.items() if value.is_floating_point()}


class Averaged(Callback):
    """An exponential moving average in a plain loop, updated after steps from 1 and epochs from 0, and what is validated."""

    def __init__(self, after_step: Any, after_epoch: Any) -> None:
        self.after_step, self.after_epoch = after_step, after_epoch
        self.average: dict[str, torch.Tensor] | None = None
        self.expected: list[dict[str, torch.Tensor]] = []
        self.validated: list[dict[str, torch.Tensor]] = []
        self.losses: list[float] = []

    def update(self, model, wanted: bool) -> None:
        now = real(model.network.state_dict())
        if wanted:
            before = self.average or now
            self.average = {name: 0.9 * before[name] + 0.1 * value for name, value in now.items()}
        self.newest = now

    def on_train_batch_end(self, trainer, pl_module, *_) -> None:
        self.update(pl_module, self.after_step(trainer.global_step))

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.update(pl_module, self.after_epoch(trainer.current_epoch))

    def on_validation_batch_end(self, trainer, pl_module, *_) -> None:
        self.seen = real(pl_module.network.state_dict())

    def on_validation_end(self, trainer, pl_module) -> None:
        self.expected.append(self.average or self.newest)
        self.validated.append(self.seen)
        self.losses.append(float(trainer.callback_metrics["val/loss"]))


@cases(
    "start after_step after_epoch",
    ([], lambda step: True, lambda epoch: False),
    ([f"{START}_step=6"], lambda step: step >= 7, lambda epoch: False),
    ([f"{START}_epoch=1", "--trainer.callbacks.update_every_n_steps=0"], lambda step: False, lambda epoch: epoch >= 1),
)
def test_the_average_is_that_of_a_plain_loop_or_else_the_newest(workplace, monkeypatch, start, after_step, after_epoch):
    """In epochs of four steps; steps are counted from 0 by the option, and from 1 here."""
    by_hand = Averaged(after_step, after_epoch)
    small(*EMA, *start, "--trainer.max_epochs=3", "--monitor=val/loss", callbacks=[by_hand])
    assert len(by_hand.validated) == 3
    torch.testing.assert_close(by_hand.validated, by_hand.expected)
    best = load(RUN / "checkpoints" / "best.ckpt")
    assert best["epoch"] == by_hand.losses.index(min(by_hand.losses))
    saved = {name.removeprefix("network."): value for name, value in best["state_dict"].items() if "network." in name}
    torch.testing.assert_close(real(saved), by_hand.expected[best["epoch"]])
    monkeypatch.setattr("project.model.classifier.build_network", lambda arch, classes, args: SmallNetwork(classes))
    evaluate(f"{RUN}/checkpoints/best.ckpt")
    evaluated = json.loads((RUN / "checkpoints" / "best.test.metrics.json").read_text())
    assert json.loads((RUN / "metrics.json").read_text())["test"].items() <= evaluated.items()


@cases(
    "flags complaint",
    (["--model.freeze=conv2"], "StochasticWeightAveraging: it resets the running statistics of BatchNorm"),
    (EMA, "StochasticWeightAveraging and EMAWeightAveraging each average the weights"),
)
def test_averages_that_would_silently_be_wrong_are_refused(workplace, capsys, flags, complaint):
    torch.save(SmallNetwork(8).state_dict(), "weights.pth")
    assert complaint in one_line(lambda: small(*SWA.split(), *flags, "--model.weights=weights.pth"), capsys)
    assert not RUN.exists()
