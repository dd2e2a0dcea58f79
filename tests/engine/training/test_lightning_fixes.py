"""Training is logged once an epoch at least; averages of weights are exact, and are what ``fit`` reports."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LambdaCallback

from project.engine.run.loggers import is_logged
from project.engine.training.lightning_fixes import LogInterval
from tests.conftest import evaluate
from tests.model.test_classifier import Memory, linear, trainer
from tests.small import load, one_line, small, stop_at
from tests.stress import SmallNetwork, differences, outcome

RUN = Path("runs/run")
EMA = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.9", "--model.optimizer.lr=0.5"]


@pytest.mark.parametrize(
    ("every", "scheduling"), [(100, {0: 1}), (100, {0: 1, 1: 2}), (100, {0: 4, 2: 1}), (0, {0: 1, 1: 2})]
)
def test_every_epoch_is_logged_however_many_steps_it_has(every, scheduling):
    logged = set()
    witness = LambdaCallback(
        on_train_batch_end=lambda trainer, *_: logged.add(trainer.current_epoch) if is_logged(trainer) else None
    )
    callbacks = [LogInterval(), GradientAccumulationScheduler(scheduling), witness]
    run = trainer(max_epochs=3, limit_val_batches=0, log_every_n_steps=every, callbacks=callbacks)
    run.fit(linear(lr_scheduler_interval="epoch"), datamodule=Memory())
    assert logged == ({0, 1, 2} if every else set())


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
        self.step = 0

    def update(self, model: Any, wanted: bool) -> None:
        now = real(model.network.state_dict())
        if wanted:
            before = self.average or now
            self.average = {name: 0.9 * before[name] + 0.1 * value for name, value in now.items()}
        self.newest = now

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.step += 1
        self.update(pl_module, self.after_step(self.step))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.update(pl_module, self.after_epoch(trainer.current_epoch))

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.seen = real(pl_module.network.state_dict())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.expected.append(self.average or self.newest)
        self.validated.append(self.seen)
        self.losses.append(float(trainer.callback_metrics["val/loss"]))


@pytest.mark.parametrize(
    ("start", "after_step", "after_epoch"),
    [
        ([], lambda step: True, lambda epoch: False),
        (["--trainer.callbacks.update_starting_at_step=6"], lambda step: step >= 7, lambda epoch: False),
        (
            ["--trainer.callbacks.update_starting_at_epoch=1", "--trainer.callbacks.update_every_n_steps=0"],
            lambda step: False,
            lambda epoch: epoch >= 1,
        ),
    ],
    ids=["from the first step", "from a step", "from an epoch"],
)
def test_the_average_is_that_of_a_plain_loop_and_until_it_starts_the_newest_weights(
    workplace, monkeypatch, start, after_step, after_epoch
):
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
    reported = json.loads((RUN / "metrics.json").read_text())["test"]
    assert {name: evaluated[name] for name in reported} == reported


SWA = [
    "--trainer.callbacks+=StochasticWeightAveraging",
    "--trainer.callbacks.swa_lrs=0.01",
    "--trainer.callbacks.swa_epoch_start=2",  # of three epochs; in a fourth, Lightning computes BatchNorm's statistics
    "--trainer.callbacks.annealing_epochs=2",
    "--trainer.max_epochs=3",
]


def test_stochastic_weight_averaging_is_resumed_exactly(workplace):
    small(*SWA, "--trainer.default_root_dir=whole")
    assert load(Path("whole/run/checkpoints/last.ckpt"))["epoch"] == 4
    for step in (2, 6, 9, 10, 12):  # before averaging, while there is one, and between it and the statistics
        stop_at(step, *SWA)
    small(*SWA)
    # in the epoch of statistics nothing is scheduled, and Lightning does not restore a schedule there
    whole, resumed = (
        {name: value for name, value in outcome(run).items() if "lr_schedulers" not in name}
        for run in (Path("whole/run"), RUN)
    )
    assert not differences(whole, resumed)
    about = load(RUN / "checkpoints" / "last.ckpt")["about"]
    assert about["lr_scheduler"] == load(Path("whole/run/checkpoints/last.ckpt"))["about"]["lr_scheduler"] != {}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--model.freeze=conv2"], "StochasticWeightAveraging: it resets the running statistics of BatchNorm"),
        (EMA, "StochasticWeightAveraging and EMAWeightAveraging each average the weights"),
    ],
)
def test_averages_that_would_silently_be_wrong_are_refused(workplace, capsys, flags, complaint):
    torch.save(SmallNetwork(8).state_dict(), "weights.pth")
    assert complaint in one_line(lambda: small(*SWA, *flags, "--model.weights=weights.pth"), capsys)
    assert not RUN.exists()
