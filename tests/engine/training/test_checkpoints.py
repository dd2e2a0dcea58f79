"""``best.ckpt`` is chosen by the metric that the command names, ``last.ckpt`` saved in time."""

import math
import signal
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torch.optim import SGD, Adagrad, Adam

from project.engine import ArrayDataset, ClassifierModule, UserError
from project.engine.run.checkpoint import AtomicCheckpointIO
from project.engine.run.processes import StopRequest
from project.engine.training.best_checkpoint import BestCheckpoint, Monitor, chosen_monitor
from project.engine.training.bookkeeping import _require_fitting_state
from tests.engine.toy import (
    BEST,
    LAST,
    RUN,
    STEPS,
    ToyClassifier,
    cases,
    curve,
    differences,
    events,
    fit,
    load,
    one_line,
    stop_at,
)

EVERY = "--callbacks.last_checkpoint.every"


def pretend(patch: pytest.MonkeyPatch, losses, accuracies) -> None:
    """Lets the validations find these, and then the test."""
    measured, conclude = zip(losses, accuracies, strict=True), ClassifierModule.conclude

    def pretended(model, split):
        results = conclude(model, split)
        if results is not None and split != "train":
            results |= dict(zip(("loss", "accuracy"), next(measured), strict=True))
        return results

    patch.setattr(ClassifierModule, "conclude", pretended)


@cases(
    "flags losses step selection",
    ([], [3.0, 1.0, 2.0], 12, ("val/accuracy", "max")),
    (["--monitor=val/loss"], [3.0, 1.0, 2.0], 8, ("val/loss", "min")),
    (["--monitor=val/loss", "--mode=max"], [3.0, 1.0, 2.0], 4, ("val/loss", "max")),
    ([], [1.0, math.nan, math.inf], 4, ("val/accuracy", "max")),
    ([], [math.nan, math.nan, 1.0], 12, ("val/accuracy", "max")),
)
def test_the_best_with_a_finite_loss_is_tested_once(
    workplace, monkeypatch, capsys, flags, losses, step, selection
):
    tested: list[dict[str, torch.Tensor]] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            ToyClassifier,
            "on_test_start",
            lambda model: tested.append(deepcopy(model.state_dict())),
        )
        pretend(patch, [*losses, 9.0], [0.25, 0.5, 0.75, 0.1])
        fit("--trainer.max_epochs=3", *flags)
    best, last, said = load(BEST), load(LAST), capsys.readouterr().err
    assert (best["global_step"], last["global_step"]) == (step, 12)
    assert [differences(best["state_dict"], one) for one in tested] == [[]]
    assert [at for at, _ in curve(RUN, "test/accuracy")] == [step - 1]  # counted from 0
    assert [at for at, _ in curve(RUN, "val/accuracy")] == [3, 7, 11]
    assert "step" not in events(RUN).Tags()["scalars"]
    assert best["about"]["selection"] == dict(zip(("monitor", "mode"), selection, strict=True))
    named = [
        f"the validation loss is {loss} after step {4 * epoch}:" in said
        for epoch, loss in enumerate(losses, 1)
    ]
    assert named == [not math.isfinite(loss) for loss in losses]


def test_a_run_that_ends_before_its_first_step_has_no_best_checkpoint(workplace, capsys):
    assert "training ended before its first step" in one_line(
        lambda: fit("--trainer.max_time=00:00:00:00"), capsys
    )
    assert list(workplace.rglob("*.ckpt")) == []


@cases(
    "metric mode expected",
    ("val/loss", None, "min"),
    ("val/loss", "max", "max"),
    ("val/own", "min", "min"),
    ("val/users", "max", "max"),
    ("val/own", None, "--monitor val/own needs --mode min or --mode max"),
    ("users", None, "the model has val/loss and val/own"),
)
def test_the_mode_is_the_metrics_own_or_is_asked_for(metric, mode, expected):
    known = {"val/loss": "min", "val/own": None}
    with nullcontext() if expected in ("min", "max") else pytest.raises(UserError, match=expected):
        assert chosen_monitor(metric, mode, known) == Monitor(metric, expected)


def test_early_stopping_stops_after_its_patience(workplace, monkeypatch):
    pretend(monkeypatch, [3.0, 1.0, 2.0, 2.0, 9.0], [0.5] * 5)
    stopping = "EarlyStopping --trainer.callbacks.monitor=val/loss --trainer.callbacks.patience=2"
    cli = fit(*f"--trainer.callbacks+={stopping} --trainer.max_epochs=9".split())
    assert cli.trainer.current_epoch == 4


@cases("number step", *zip(StopRequest.SIGNALS, (3, STEPS, STEPS + 1, 3), strict=True))
def test_whoever_stops_a_run_is_told_how_to_resume_it_at_the_very_end_too(
    workplace, capsys, number, step
):
    before = [signal.getsignal(one) for one in StopRequest.SIGNALS]
    assert stop_at(step, number=number).code == 75
    said = f"stopped after step {min(step, STEPS)}; to resume, run the same command with --name run"
    assert said in capsys.readouterr().err
    assert [signal.getsignal(one) for one in StopRequest.SIGNALS] == before
    assert not (RUN / "metrics.json").exists()
    fit()
    assert (RUN / "metrics.json").exists()


def test_samples_that_were_trained_on_are_not_loaded_again(workplace, monkeypatch):
    served: list[int] = []  # the keys of training samples
    serve = ArrayDataset.__getitems__

    def remember(dataset, wanted):
        served.extend(wanted if len(dataset) == 64 else [])
        return serve(dataset, wanted)

    monkeypatch.setattr(ArrayDataset, "__getitems__", remember)
    fit("--name=whole")
    whole = served.copy()
    assert len(whole) == 16 * STEPS
    for step in (3, 4):
        stop_at(step, f"--name=stopped {step}")
        served.clear()
        fit(f"--name=stopped {step}")
        assert served == whole[16 * step :]


@cases(
    "flags saving steps",
    (f"{EVERY}_minutes=100", 0.001, [4, 8, 12]),
    (f"{EVERY}_minutes=100", 1, [4, 12]),  # the first shows how long it takes
    (f"{EVERY}_minutes=3", 0.001, [3, 4, 7, 8, 11, 12]),
    (f"{EVERY}_minutes=100 {EVERY}_n_steps=5", 1, [4, 5, 10, 12]),
    (f"--trainer.accumulate_grad_batches=2 {EVERY}_minutes=3", 1, [2, 4, 6]),
)
def test_a_run_saves_when_it_is_time(workplace, monkeypatch, flags, saving, steps):
    """Where a step takes a minute, and a save as long as ``saving`` steps."""
    times, saved, save = [0.0], list[int](), AtomicCheckpointIO.save_checkpoint

    def slow_save(io, checkpoint, path, storage_options=None):
        if Path(path).name == "last.ckpt":
            times.append(times[-1] + 60 * saving)
            saved.append(checkpoint["global_step"])
        save(io, checkpoint, path)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", slow_save)
    monkeypatch.setattr(
        "project.engine.training.last_checkpoint.time", SimpleNamespace(monotonic=lambda: times[-1])
    )
    steps_take_time = LambdaCallback(on_train_batch_end=lambda *_: times.append(times[-1] + 60))
    fit("--trainer.max_epochs=3", *flags.split(), callbacks=[steps_take_time])
    assert saved == steps


@cases("cls options", (SGD, {"momentum": 0.9}), (Adam, {"amsgrad": True}), (Adagrad, {}))
def test_an_optimizers_state_fits_it_and_none_of_other_shapes(cls, options):
    layers = [nn.Linear(3, outputs) for outputs in (4, 2)]
    optimizer, other = (cls(layer.parameters(), fused=True, **options) for layer in layers)
    for layer, part in zip(layers, (optimizer, other), strict=True):
        layer(torch.rand(2, 3)).sum().backward()
        part.step()
    _require_fitting_state(optimizer, "last.ckpt")
    optimizer.load_state_dict(other.state_dict())
    with pytest.raises(UserError, match=r"'last\.ckpt'.* has the shape \(2, 3\), not \(4, 3\)"):
        _require_fitting_state(optimizer, "last.ckpt")


def test_a_run_resumes_with_its_own_options_and_last_checkpoint_alone_or_fewer_counts(
    workplace, capsys
):
    stop_at(3)
    for flag, complaint in (
        ("--model.interval=step", "--model.interval is step, not epoch, which cannot change"),
        ("--model.optimizer=AdamW", "--model.optimizer is {'class_path': 'torch.optim.AdamW'"),
        ("--monitor=val/loss", "--monitor is val/loss, not val/accuracy, which cannot change"),
        ("--callbacks.last_checkpoint=false", "resumes only with --callbacks.last_checkpoint"),
    ):
        assert complaint in one_line(lambda flag=flag: fit(flag), capsys)
        assert load(LAST)["global_step"] == 3
    older = load(LAST)
    del older["counts"]["accuracy"]
    torch.save(older, LAST)
    fit()


def test_the_best_checkpoint_restores_the_newest_score_too(tmp_path):
    """Lightning's saves it and leaves it out when it loads, so that resumed runs differ in it."""
    best = BestCheckpoint(tmp_path)
    state = {**best.state_dict(), "current_score": torch.tensor(0.5)}
    best.load_state_dict(state)
    assert best.state_dict() == state
