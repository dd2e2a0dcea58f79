"""What ``fit`` reports of averaged weights is what its ``best.ckpt`` holds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from sklearn.metrics import confusion_matrix
from torch.nn import functional as F

from project.callbacks import StoppedError
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import evaluate
from tests.small import AtStep, load, one_line, small, stop_at
from tests.stress import SmallNetwork, differences, outcome

RUN = Path("runs/run")
AVERAGING = {
    "EMAWeightAveraging": ["--trainer.callbacks.decay=0.9"],
    "WeightAveraging": [],
}


def options(callback: str) -> list[str]:
    return [f"--trainer.callbacks+={callback}", *AVERAGING[callback], "--model.optimizer.lr=0.5"]


def measured_by_a_plain_loop(cli: FitCLI, network: torch.nn.Module, split: str) -> tuple[list[list[int]], float]:
    """The confusion matrix and the mean loss over a split, image by image."""
    images, preprocessing = cli.datamodule.splits[split], cli.model.preprocessing
    mean, std = (torch.tensor(preprocessing[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        logits = torch.cat([network((images.image(i) / 255 - mean)[None] / std) for i in range(len(images))])
    matrix = confusion_matrix(images.labels, logits.argmax(1), labels=range(len(cli.model.class_names)))
    return matrix.tolist(), F.cross_entropy(logits, images.labels).item()


def network_of(cli: FitCLI, weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    network = SmallNetwork(len(cli.model.class_names)).eval()
    network.load_state_dict({name.removeprefix("network."): value for name, value in weights.items()})
    return network


def require_metrics_of_best(cli: FitCLI, monkeypatch: Any) -> None:
    metrics = json.loads((RUN / "metrics.json").read_text())
    checkpoint = load(RUN / "checkpoints" / "best.ckpt")
    for split in ("val", "test"):
        matrix, loss = measured_by_a_plain_loop(cli, network_of(cli, checkpoint["state_dict"]), split)
        assert metrics[split]["confusion_matrix"] == matrix
        assert metrics[split]["loss"] == pytest.approx(loss, abs=1e-5)
    reported = metrics["test"]

    with monkeypatch.context() as patch:
        patch.setattr("project.model.classifier.build_network", lambda arch, classes, args: SmallNetwork(classes))
        evaluate(f"{RUN}/checkpoints/best.ckpt")
    evaluated = json.loads((RUN / "checkpoints" / "best.test.metrics.json").read_text())
    assert {name: evaluated[name] for name in reported} == reported


@pytest.mark.parametrize("callback", AVERAGING)
def test_the_metrics_are_those_of_best(workplace, monkeypatch, callback):
    require_metrics_of_best(small(*options(callback)), monkeypatch)


def test_after_a_resume_too(workplace, monkeypatch):
    stop_at(6, *options("EMAWeightAveraging"))
    require_metrics_of_best(small(*options("EMAWeightAveraging")), monkeypatch)


def test_training_that_ends_before_an_epoch_does_too(workplace, monkeypatch):
    require_metrics_of_best(small(*options("EMAWeightAveraging"), "--trainer.max_steps=3"), monkeypatch)


class Raw(Callback):
    """Keeps the weights after each step, before any callback averages them; ``EMAWeightAveraging`` comes later."""

    def __init__(self) -> None:
        self.after: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.after[trainer.global_step] = {name: value.clone() for name, value in pl_module.state_dict().items()}


def averages_of_a_plain_loop(raw: dict[int, dict[str, torch.Tensor]], decay: float) -> dict[int, Any]:
    """Polyak and Juditsky's average with exponential weights, in float64, from the first step's weights on."""
    averages: dict[int, Any] = {}
    for step, weights in sorted(raw.items()):
        before = averages.get(step - 1, weights)
        averages[step] = {
            name: decay * before[name].double() + (1 - decay) * value.double() for name, value in weights.items()
        }
    return averages


def test_the_average_is_that_of_a_plain_loop_over_a_stop_within_an_epoch(workplace, monkeypatch):
    raw, flags = Raw(), options("EMAWeightAveraging")
    with pytest.raises(StoppedError):
        small(*flags, callbacks=[raw, AtStep(6)])  # of 8, 4 an epoch
    stopped = load(RUN / "checkpoints" / "last.ckpt")
    small(*flags, callbacks=[raw])
    averages = averages_of_a_plain_loop(raw.after, decay=0.9)
    assert sorted(averages) == list(range(1, 9))
    best, last = (load(RUN / "checkpoints" / f"{name}.ckpt") for name in ("best", "last"))
    for checkpoint, step in ((stopped, 6), (best, best["global_step"]), (last, 8)):
        assert checkpoint["global_step"] == step
        for name, value in checkpoint["state_dict"].items():
            if value.is_floating_point():  # torch rounds the average of BatchNorm's count, which nothing uses
                torch.testing.assert_close(value, averages[step][name].to(value.dtype), rtol=1e-5, atol=1e-6)
        assert not differences(checkpoint["current_model_state"], raw.after[step])
    monkeypatch.setattr("project.model.classifier.build_network", lambda arch, classes, args: SmallNetwork(classes))
    shipped = ImageClassifier.load_from_checkpoint(RUN / "checkpoints" / "best.ckpt")
    assert not differences(dict(shipped.state_dict()), dict(best["state_dict"]))


def real(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of weights and statistics, without the counts of batches, of which there is no mean."""
    return {name: value.clone() for name, value in state.items() if value.is_floating_point()}


class Averaged(Callback):
    """An exponential moving average in a plain loop, and what the validation measures at its end.

    Args:
        after_step: Whether the average takes part of the weights after a step, counted from 1.
        after_epoch: Whether it does so after an epoch, counted from 0.
    """

    def __init__(self, after_step: Any, after_epoch: Any) -> None:
        self.after_step, self.after_epoch = after_step, after_epoch
        self.average: dict[str, torch.Tensor] | None = None
        self.expected: list[dict[str, torch.Tensor]] = []
        self.validated: list[dict[str, torch.Tensor]] = []
        self.losses: list[float] = []
        self.step = 0

    def update(self, model: Any, wanted: bool) -> None:
        now = real(model.network.state_dict())
        if wanted and self.average is None:
            self.average = now
        elif wanted and self.average is not None:
            self.average = {name: 0.9 * self.average[name] + 0.1 * value for name, value in now.items()}
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
        (["--trainer.callbacks.update_starting_at_step=6"], lambda step: step >= 7, lambda epoch: False),
        (
            ["--trainer.callbacks.update_starting_at_epoch=1", "--trainer.callbacks.update_every_n_steps=0"],
            lambda step: False,
            lambda epoch: epoch >= 1,
        ),
    ],
    ids=["step", "epoch"],
)
def test_an_average_that_starts_late_is_the_newest_weights_until_then(
    workplace, monkeypatch, start, after_step, after_epoch
):
    """In epochs of four steps; steps are counted from 0 by the option, and from 1 here."""
    by_hand = Averaged(after_step, after_epoch)
    late = [*options("EMAWeightAveraging"), *start, "--trainer.max_epochs=3", "--monitor=val/loss"]
    cli = small(*late, callbacks=[by_hand])
    assert len(by_hand.validated) == 3
    for seen, expected in zip(by_hand.validated, by_hand.expected, strict=True):
        torch.testing.assert_close(seen, expected)
    best = load(RUN / "checkpoints" / "best.ckpt")
    assert best["epoch"] == by_hand.losses.index(min(by_hand.losses))
    saved = {name.removeprefix("network."): value for name, value in best["state_dict"].items() if "network." in name}
    torch.testing.assert_close(real(saved), by_hand.expected[best["epoch"]])
    require_metrics_of_best(cli, monkeypatch)


def test_an_average_that_starts_late_resumes_exactly(workplace, monkeypatch):
    late = [*options("EMAWeightAveraging"), "--trainer.callbacks.update_starting_at_step=6"]
    (workplace / "whole").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(workplace / "whole")
        small(*late)
    for step in (3, 8):
        stop_at(step, *late)
    small(*late)
    assert not differences(outcome(workplace / "whole" / RUN), outcome(RUN))


SWA = [
    "--trainer.callbacks+=StochasticWeightAveraging",
    "--trainer.callbacks.swa_lrs=0.01",
    "--trainer.callbacks.swa_epoch_start=2",  # of three epochs; in a fourth, Lightning computes BatchNorm's statistics
    "--trainer.callbacks.annealing_epochs=2",
    "--trainer.max_epochs=3",
]


def test_stochastic_weight_averaging_is_resumed_exactly(workplace, monkeypatch):
    (workplace / "whole").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(workplace / "whole")
        require_metrics_of_best(small(*SWA), monkeypatch)
        assert load(RUN / "checkpoints" / "last.ckpt")["epoch"] == 4
    for step in (2, 6, 9, 10, 12):  # before averaging, while there is one, and between it and the statistics
        stop_at(step, *SWA)
    small(*SWA)
    # in the epoch of statistics nothing is scheduled, and Lightning does not restore a schedule there
    whole, resumed = (
        {name: value for name, value in outcome(place / RUN).items() if "lr_schedulers" not in name}
        for place in (workplace / "whole", workplace)
    )
    assert not differences(whole, resumed)


@pytest.mark.parametrize("flag", ["--model.freeze=backbone", "--model.freeze=conv2"])
def test_stochastic_weight_averaging_that_would_reset_frozen_statistics_is_refused(workplace, capsys, flag):
    torch.save(SmallNetwork(8).state_dict(), "weights.pth")
    line = one_line(lambda: small(*SWA, "--model.weights=weights.pth", flag), capsys)
    assert "StochasticWeightAveraging: it resets the running statistics of BatchNorm" in line
    assert not RUN.exists()
