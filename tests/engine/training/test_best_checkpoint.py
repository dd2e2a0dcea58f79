"""``best.ckpt`` is chosen by the metric that the command names, and is one of finite metrics."""

import math
from pathlib import Path

import pytest
import torch

from project.engine.errors import UserError
from project.engine.training.best_checkpoint import Monitor, chosen_monitor
from project.model import ImageClassifier
from project.model.metrics import Metrics
from tests.conftest import cases
from tests.small import load, one_line, small
from tests.stress import differences
from tests.test_fit import events

BEST = Path("runs/run/checkpoints/best.ckpt")


def pretend(patch: pytest.MonkeyPatch, losses, accuracies) -> None:
    """Lets the validations find these, and then the test."""
    measured, rates = zip(losses, accuracies, strict=True), Metrics.rates

    def pretended(metrics):
        return dict(zip(("loss", "accuracy"), next(measured), strict=True)) if metrics.total else rates(metrics)

    patch.setattr(Metrics, "rates", pretended)
    patch.setattr(Metrics, "as_dict", lambda metrics: {"f1": 0.0, "loss": 0.0})


@cases(
    "flags losses step selection",
    ([], [3.0, 1.0, 2.0], 12, ("val/accuracy", "max")),
    (["--monitor=val/loss"], [3.0, 1.0, 2.0], 8, ("val/loss", "min")),
    (["--monitor=val/loss", "--mode=max"], [3.0, 1.0, 2.0], 4, ("val/loss", "max")),
    ([], [1.0, math.nan, math.inf], 4, ("val/accuracy", "max")),
    ([], [math.nan, math.nan, 1.0], 12, ("val/accuracy", "max")),
)
def test_the_best_with_a_finite_loss_is_tested_once(workplace, monkeypatch, capsys, flags, losses, step, selection):
    tested: list[dict[str, torch.Tensor]] = []

    def remember(model):
        tested.append({name: value.clone() for name, value in model.state_dict().items()})

    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, "on_test_start", remember)
        pretend(patch, [*losses, 9.0], [0.25, 0.5, 0.75, 0.1])
        small("--trainer.max_epochs=3", *flags)
    best, last, said = load(BEST), load(BEST.with_name("last.ckpt")), capsys.readouterr()
    assert (best["global_step"], last["global_step"]) == (step, 12)
    assert [differences(best["state_dict"], one) for one in tested] == [[]]
    logged = events("runs/run")
    for points in (logged.Scalars("test/accuracy"), logged.Images("test/confusion_matrix")):
        assert [point.step for point in points] == [step - 1]  # counted from 0
    assert [point.step for point in logged.Scalars("val/accuracy")] == [3, 7, 11]
    assert "step" not in logged.Tags()["scalars"]
    assert best["about"]["selection"] == dict(zip(("monitor", "mode"), selection, strict=True))
    assert f"best.ckpt (epoch {step // 4}, by {selection[0]})" in said.out
    for epoch, loss in enumerate(losses, 1):
        is_named = f"the validation loss is {loss} at epoch {epoch}," in said.err
        assert is_named == (not math.isfinite(loss))


def test_a_run_that_ends_before_its_first_step_has_no_best_checkpoint(workplace, capsys):
    assert "training ended before its first step" in one_line(lambda: small("--trainer.max_time=00:00:00:00"), capsys)
    assert list(workplace.rglob("*.ckpt")) == []


@cases(
    "metric mode expected",
    ("val/loss", None, "min"),
    ("val/loss", "max", "max"),
    ("val/own", "min", "min"),
    ("val/users", "max", "max"),
    ("val/own", None, "give --mode min or --mode max"),
    ("val/loos", None, "no metric 'val/loos'; did you mean val/loss?.* give --mode"),
    ("users", None, "it has val/loss and val/own"),
)
def test_the_mode_is_the_metrics_own_or_is_asked_for(metric, mode, expected):
    known = {"val/loss": "min", "val/own": None}
    if expected in ("min", "max"):
        assert chosen_monitor(metric, mode, known) == Monitor(metric, expected)
    else:
        with pytest.raises(UserError, match=expected):
            chosen_monitor(metric, mode, known)


def test_early_stopping_watches_the_same_unless_told_otherwise_and_stops_after_its_patience(workplace, monkeypatch):
    pretend(monkeypatch, [3.0, 1.0, 2.0, 2.0, 9.0], [0.5] * 5)
    own = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=train/loss"]
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.patience=2", "--monitor=val/loss"]
    cli = small(*own, "--trainer.callbacks.patience=9", *stopping, "--trainer.max_epochs=9")
    assert cli.trainer.current_epoch == 4
    found = [(one.monitor, one.mode, one.patience) for one in cli.trainer.early_stopping_callbacks]
    assert found == [("train/loss", "min", 9), ("val/loss", "min", 2)]


@pytest.mark.parametrize("flags", [["--trainer.max_steps=1"], ["--trainer.check_val_every_n_epoch=2"]])
def test_early_stopping_waits_for_a_validation(workplace, flags):
    cli = small("--trainer.callbacks+=EarlyStopping", *flags)
    (stopping,) = cli.trainer.early_stopping_callbacks
    assert stopping.best_score.isfinite() == (cli.trainer.global_step == 8)
