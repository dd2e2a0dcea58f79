"""``best.ckpt`` is chosen by the metric that the command names."""

from pathlib import Path

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from project.engine.errors import UserError
from project.engine.training.monitor import Monitor, chosen_monitor, only_ours
from project.model.metrics import Metrics
from tests.small import load, one_line, small, stop_at

BEST = Path("runs/run/checkpoints/best.ckpt")
KNOWN = {"val/loss": "min", "val/accuracy": "max", "val/own": None}


@pytest.mark.parametrize(
    ("flags", "step", "selection"),
    [
        ([], 12, ("val/accuracy", "max")),
        (["--monitor=val/loss"], 8, ("val/loss", "min")),
        (["--monitor=val/loss", "--mode=max"], 4, ("val/loss", "max")),
        (["--monitor=val/accuracy", "--mode=min"], 4, ("val/accuracy", "min")),
    ],
)
def test_the_best_checkpoint_is_the_best_by_that_metric(workplace, monkeypatch, capsys, flags, step, selection):
    measured = iter([(3.0, 0.25), (1.0, 0.5), (2.0, 0.75), (9.0, 0.1)])  # the last is the test's
    rates = Metrics.rates

    def pretend(metrics):
        return dict(zip(("loss", "accuracy"), next(measured), strict=True)) if metrics.total else rates(metrics)

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "rates", pretend)
        patch.setattr(Metrics, "as_dict", lambda metrics: {"f1": 0.0, "loss": 0.0})
        small("--trainer.max_epochs=3", *flags)
    best = load(BEST)
    assert best["global_step"] == step
    assert best["about"]["selection"] == dict(zip(("monitor", "mode"), selection, strict=True))
    assert f"best.ckpt (epoch {step // 4}, by {selection[0]})" in capsys.readouterr().out


def test_a_resumed_run_keeps_its_monitor(workplace, capsys):
    stop_at(6)
    line = one_line(lambda: small("--monitor=val/loss"), capsys)
    assert "chooses best.ckpt by val/accuracy, max, but the command by val/loss, min" in line
    assert "but the command by nothing" in one_line(lambda: small("--callbacks.best_checkpoint=false"), capsys)
    small("--monitor=val/accuracy", "--mode=max")


@pytest.mark.parametrize(
    ("metric", "mode", "closed", "expected"),
    [
        ("val/loss", None, True, "min"),
        ("val/loss", "max", True, "max"),
        ("val/own", "min", True, "min"),
        ("val/users", "max", False, "max"),
        ("val/own", None, True, "give --mode min or --mode max"),
        ("val/users", None, False, "give --mode min or --mode max"),
        ("val/users", "max", True, "there are val/loss, val/accuracy, val/own"),
    ],
)
def test_the_mode_is_the_metrics_own_or_is_asked_for(metric, mode, closed, expected):
    if expected in ("min", "max"):
        assert chosen_monitor(metric, mode, KNOWN, closed) == Monitor(metric, expected)
    else:
        with pytest.raises(UserError, match=expected):
            chosen_monitor(metric, mode, KNOWN, closed)


def test_metrics_are_all_known_where_nothing_is_the_users():
    class Own(EarlyStopping):
        pass

    assert only_ours(ModelCheckpoint(), Monitor("a", "min"))
    assert not only_ours(ModelCheckpoint(), Own("a"))


def test_early_stopping_watches_the_same_unless_told_otherwise(workplace):
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.patience=5"]
    own = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=train/loss"]
    cli = small(*stopping, *own, "--monitor=val/f1", "--trainer.max_epochs=1")
    found = [(one.monitor, one.mode, one.patience) for one in cli.trainer.early_stopping_callbacks]
    assert found == [("val/f1", "max", 5), ("train/loss", "min", 3)]


@pytest.mark.parametrize("flags", [["--trainer.max_steps=1"], ["--trainer.check_val_every_n_epoch=2"]])
def test_early_stopping_waits_for_a_validation(workplace, flags):
    cli = small("--trainer.callbacks+=EarlyStopping", *flags)
    (stopping,) = cli.trainer.early_stopping_callbacks
    assert stopping.best_score.isfinite() == (cli.trainer.global_step == 8)


def test_early_stopping_stops_after_its_patience(workplace, monkeypatch):
    losses = iter([3.0, 1.0, 2.0, 2.0, 9.0])  # the last is the test's
    rates = Metrics.rates
    monkeypatch.setattr(Metrics, "rates", lambda found: {"loss": next(losses)} if found.total else rates(found))
    monkeypatch.setattr(Metrics, "as_dict", lambda found: {"f1": 0.0, "loss": 0.0})
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.patience=2", "--monitor=val/loss"]
    assert small(*stopping, "--trainer.max_epochs=9").trainer.current_epoch == 4
