"""``best.ckpt`` is chosen by the metric that the command names, ``last.ckpt`` saved in time."""

import math
import shutil
import signal
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from lightkeeper.exact import AtomicCheckpointIO
from lightkeeper.exact._processes import StopRequest
from lightning.pytorch.callbacks import LambdaCallback

from tests.toy import (
    BEST,
    LAST,
    RUN,
    STEPS,
    ToyClassifier,
    ToyData,
    cases,
    curve,
    differences,
    fit,
    load,
    one_line,
    read_json,
    stop_at,
)

EVERY = "--callbacks.last_checkpoint.every"


def pretend(patch: pytest.MonkeyPatch, losses, accuracies) -> None:
    """Lets the validations find these, and then the test."""
    measured, conclude = zip(losses, accuracies, strict=True), ToyClassifier.conclude

    def pretended(model, split):
        results = conclude(model, split)
        if results and split != "train":
            results |= dict(zip(("loss", "accuracy"), next(measured), strict=True))
        return results

    patch.setattr(ToyClassifier, "conclude", pretended)


@cases(
    "flags losses step selection",
    ([], [3.0, 1.0, 2.0], 12, ("val/accuracy", "max")),
    (["--monitor=val/loss"], [3.0, 1.0, 2.0], 8, ("val/loss", "min")),
    (["--monitor=val/loss", "--mode=max"], [3.0, 1.0, 2.0], 4, ("val/loss", "max")),
    (
        ["--monitor=val/loss", "--callbacks.stop_on_non_finite=false"],
        [math.nan, 1.0, math.inf],
        *(8, ("val/loss", "min")),
    ),
)
def test_the_best_is_tested_once(workplace, monkeypatch, flags, losses, step, selection):
    tested: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(
        ToyClassifier, "on_test_start", lambda model: tested.append(deepcopy(model.state_dict()))
    )
    pretend(monkeypatch, [*losses, 9.0], [0.25, 0.5, 0.75, 0.1])
    fit("--trainer.max_epochs=3", *flags)
    best = load(BEST)
    assert (best["global_step"], load(LAST)["global_step"]) == (step, 12)
    assert [differences(best["state_dict"], weights) for weights in tested] == [[]]
    assert len(curve(RUN, "test/accuracy")) == 1
    assert [at for at, _ in curve(RUN, "val/accuracy")] == [3, 7, 11]
    assert best["about"]["selection"] == dict(zip(("monitor", "mode"), selection, strict=True))


@cases("stops", (), (5, 10))
@cases(
    "losses accuracies step",
    ([3.0, 1.0, 2.0, 0.5], [0.5, 0.75, 0.75, 0.5], 8),
    ([3.0, 2.0, 1.0, math.nan], [0.5, 0.75, 0.75, 0.75], 12),
)
def test_of_equally_good_checkpoints_that_of_the_smallest_loss_is_the_best(
    workplace, monkeypatch, losses, accuracies, step, stops
):
    """On few images the first epochs may tie with all others, and have learned next to nothing."""
    pretend(monkeypatch, [*losses, 9.0], [*accuracies, 0.1])
    flags = ("--trainer.max_epochs=4", "--callbacks.stop_on_non_finite=false")
    for stop in stops:
        stop_at(stop, *flags)
    fit(*flags)
    assert load(BEST)["global_step"] == step


@cases("damage", Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:2000]))
@cases("stop accuracies best", (7, [0.9, 0.5, 0.7, 0.6], 12), (13, [0.9, 0.5, 0.6, 0.7, 0.6], 12))
def test_a_best_checkpoint_that_is_lost_while_a_run_is_stopped_is_replaced_by_the_next_best(
    workplace, monkeypatch, capsys, stop, accuracies, best, damage
):
    """The second run is stopped in its test, after which its last weights are validated."""
    pretend(monkeypatch, [1.0] * len(accuracies), accuracies)
    stop_at(stop, "--trainer.max_epochs=3")
    damage(BEST)
    capsys.readouterr()
    fit("--trainer.max_epochs=3")
    assert f"{BEST}' is lost or damaged; " in capsys.readouterr().err
    metrics = read_json(RUN / "metrics.json")
    assert (metrics["step"], load(BEST)["global_step"]) == (best, best)
    assert [metrics[split]["accuracy"] for split in ("val", "test")] == accuracies[-2:]


class Colours(ToyData):
    class_names = ["red", "green", "blue"]


def test_a_best_checkpoint_of_another_run_is_not_tested(workplace, capsys):
    """Copied from a run of other classes or another network over that of a stopped run."""
    fit(
        "--trainer.max_epochs=1",
        "--trainer.default_root_dir=other",
        f"--data={__name__}.Colours",
    )
    stop_at(5)
    shutil.copy("other/run/checkpoints/best.ckpt", BEST)
    assert f"'{BEST}' is not the best of this run; put that back" in one_line(fit, capsys)
    BEST.unlink()
    fit()
    assert f"{BEST}' is lost or damaged; " in capsys.readouterr().err


@cases(
    "losses accuracies",
    ([1.0] * 4, [0.5, 0.9, 0.7, 0.6]),
    ([3.0, 1.0, 2.0, 9.0], [0.9, 0.9, 0.7, 0.6]),
)
def test_a_best_checkpoint_of_an_earlier_epoch_is_not_tested(
    workplace, monkeypatch, capsys, losses, accuracies
):
    """As a copy of a run that trains may have one; of equal scores, the loss tells."""
    pretend(monkeypatch, losses, accuracies)
    stop_at(5, "--trainer.max_epochs=3")
    early = shutil.copy(BEST, "early.ckpt")
    stop_at(10, "--trainer.max_epochs=3")
    shutil.copy(early, BEST)
    said = one_line(lambda: fit("--trainer.max_epochs=3"), capsys)
    assert f"'{BEST}' is not the best of this run; put that back" in said


def test_a_better_checkpoint_that_a_kill_has_left_is_tested_if_none_is_better(
    workplace, monkeypatch
):
    """As where a GPU does not repeat the epoch to the last bit."""
    pretend(monkeypatch, [1.0] * 6, [0.5, 0.9, 0.4, 0.3, 0.2, 0.1])
    stop_at(5, "--trainer.max_epochs=3")
    kept = shutil.copy(LAST, "last.kept")
    stop_at(9, "--trainer.max_epochs=3")
    shutil.copy(kept, LAST)
    stop_at(10, "--trainer.max_epochs=3")
    fit("--trainer.max_epochs=3")
    assert load(BEST)["global_step"] == 8


def test_a_best_checkpoint_without_a_last_one_is_not_replaced_in_silence(workplace, capsys):
    stop_at(7)
    for path in {*LAST.parent.iterdir()} - {BEST}:
        path.unlink()
    capsys.readouterr()
    fit()
    said = capsys.readouterr()
    assert f"{BEST}' will be replaced" in said.out + said.err


def test_a_metric_that_nobody_knows_needs_a_mode(workplace, capsys):
    complaint = "val/own is no metric of the model's with a known direction"
    assert complaint in one_line(lambda: fit("--monitor=val/own"), capsys)
    assert list(workplace.rglob("*.ckpt")) == []


class Logging(ToyClassifier):
    """Logs a metric of its own in each validation."""

    def validation_step(self, batch, batch_idx: int) -> torch.Tensor:
        self.log("val/mine", float(batch_idx))
        return super().validation_step(batch, batch_idx)


SANITY = "--trainer.num_sanity_val_steps=2"
OWN = f"--model={__name__}.Logging"


def test_a_metric_that_validation_logs_by_itself_may_choose_the_best(workplace):
    fit(SANITY, OWN, "--monitor=val/mine", "--mode=max")
    assert load(BEST)["about"]["selection"] == {"monitor": "val/mine", "mode": "max"}


@cases(
    "flags option",
    ("--monitor=val/acuracy --mode=max", "--monitor: validation does not log val/acuracy"),
    ("--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/acc", "EarlyStopping"),
    ("--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitor=val/acc", "ModelCheckp"),
)
def test_a_metric_that_validation_does_not_log_is_refused_before_training(
    workplace, capsys, flags, option
):
    line = one_line(lambda: fit(SANITY, OWN, *flags.split()), capsys)
    assert line.startswith(f"error: {option}")
    assert "but val/accuracy, val/loss and val/mine; if" in line
    assert not LAST.exists()


@cases(
    "flags",
    "--monitor=train/loss --mode=min",
    "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/acc"
    " --trainer.callbacks.strict=false",
)
def test_a_metric_that_training_logs_or_that_may_be_absent_is_not(workplace, flags):
    fit(SANITY, *flags.split())
    assert load(LAST)["global_step"] == STEPS


@cases("limit said", ("00:00:00:00", True), ("00:01:00:00", False))
def test_a_run_that_a_limit_of_time_ends_says_so_and_what_to_do(workplace, capsys, limit, said):
    fit(f"--trainer.max_time={limit}", "--trainer.max_epochs=2")
    line = (
        "training ended after step 0, at the time limit of --trainer.max_time or a Timer; to train"
        " longer, start another from its weights: --name run_longer --model.weights"
        " runs/run/checkpoints/best.ckpt\n"
    )
    err = capsys.readouterr().err
    assert (line in err, "time limit" in err) == (said, said)


@cases("number step", *zip(StopRequest.SIGNALS, (3, STEPS, STEPS + 1, 3), strict=True))
def test_whoever_stops_a_run_is_told_how_to_resume_it_at_the_very_end_too(
    workplace, capsys, number, step
):
    before = [signal.getsignal(number) for number in StopRequest.SIGNALS]
    assert stop_at(step, number=number).code == 75
    hint = "to resume, run python -m tests.fit with the same options and --name run"
    assert f"stopped after step {min(step, STEPS)}; {hint}" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in StopRequest.SIGNALS] == before
    assert not (RUN / "metrics.json").exists()
    fit()
    assert (RUN / "metrics.json").exists()


def test_who_interrupts_a_run_while_it_opens_is_told_the_step_that_it_resumes_from(
    workplace, monkeypatch, capsys
):
    stop_at(6)
    monkeypatch.setattr(ToyData, "setup", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(SystemExit):
        fit()
    said = capsys.readouterr().err
    assert said.count("stopped after step 6; to resume, run python -m tests.fit") == 2
    assert "step 0" not in said


@cases("flags", [], ["--callbacks.last_checkpoint=false"])
def test_without_a_best_checkpoint_lightning_adds_none_and_the_last_weights_are_tested(
    workplace, flags
):
    fit("--callbacks.best_checkpoint=false", *flags)
    names = {"best.ckpt"} if flags else {"best.ckpt", "last.ckpt"}
    assert {path.name for path in RUN.rglob("*.ckpt")} == names
    assert load(BEST)["global_step"] == STEPS
    fit(
        "--callbacks.best_checkpoint=false",
        *flags,
        "--trainer.enable_checkpointing=true",
        "--name=b",
    )
    assert len({path.name for path in Path("runs/b").rglob("*.ckpt")}) == len(names) + 1


@cases(
    "flags saving steps",
    (f"{EVERY}_minutes=100", 0.001, [4, 8, 12]),
    (f"{EVERY}_minutes=100", 1, [4, 12]),  # the first shows how long it takes
    (f"{EVERY}_minutes=3", 0.001, [3, 4, 7, 8, 11, 12]),
    (f"{EVERY}_minutes=100 {EVERY}_n_steps=5", 1, [4, 5, 10, 12]),
    (f"--trainer.accumulate_grad_batches=2 {EVERY}_minutes=3", 1, [2, 4, 6]),
)
def test_a_run_saves_when_it_is_time(workplace, monkeypatch, flags, saving, steps):
    """A step takes a minute, and a save as long as ``saving`` steps."""
    times, saved, save = [0.0], list[int](), AtomicCheckpointIO.save_checkpoint

    def slow_save(io, checkpoint, path, storage_options=None):
        if Path(path).name == "last.ckpt":
            times.append(times[-1] + 60 * saving)
            saved.append(checkpoint["global_step"])
        save(io, checkpoint, path)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", slow_save)
    monkeypatch.setattr(
        "lightkeeper.exact._last_checkpoint.time", SimpleNamespace(monotonic=lambda: times[-1])
    )
    steps_take_time = LambdaCallback(on_train_batch_end=lambda *_: times.append(times[-1] + 60))
    fit("--trainer.max_epochs=3", *flags.split(), callbacks=[steps_take_time])
    assert saved == steps


def test_a_moved_run_still_knows_its_best_metric(workplace, monkeypatch):
    fit()
    run = Path(shutil.copytree("runs", "elsewhere"), "run")
    (run / "metrics.json").unlink()
    before = (run / "checkpoints" / "best.ckpt").read_bytes()
    hook = "on_validation_epoch_end"
    monkeypatch.setattr(ToyClassifier, hook, lambda model: model.log("val/accuracy", 0.0))
    fit("--trainer.max_epochs=3", "--trainer.default_root_dir=elsewhere")
    assert (run / "checkpoints" / "best.ckpt").read_bytes() == before
