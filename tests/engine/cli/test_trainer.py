"""What cannot work is refused in one line, the cheap before the expensive, and leaves no run folder."""

import pytest

from tests.conftest import fit, make_folder
from tests.small import one_line, small


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--trainer.limit_val_batches=0", "--trainer.limit_val_batches 0 leaves no batch"),
        (
            "--trainer.limit_test_batches=0.01",
            "--trainer.limit_test_batches 0.01 leaves no batch",
        ),  # else known after training
        ("--trainer.default_root_dir=s3://bucket/runs", "must be a folder of this machine, not an address"),
        ("--trainer.barebones=true", "Logging can impact raw speed"),
        ("--trainer.callbacks+=LearningRateFinder", "LearningRateFinder searches in Python alone"),
        ("--trainer.accelerator=gpuu", "these --trainer options do not work here"),
        ("--data.batch_size=4000", "--data.batch_size must be at most"),
        ("--data=broken --data.image_size=16 --data.batch_size=2", "cannot be read as images"),
        ("--trainer.logger=WandbLogger", "Requirement 'wandb"),
        ("--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.save_top_k=3", "No quantity for top_k to track"),
        (
            "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/accuracy",
            "EarlyStopping has mode min, but max of 'val/accuracy' is best",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_an_image_is_drawn_or_a_folder_made(
    workplace, monkeypatch, capsys, flags, complaint
):
    monkeypatch.setattr("project.data.drawn.module.draw_flowers", None)  # a TypeError where an image is drawn
    if "broken" in flags:
        broken = make_folder(workplace / "broken", {"blue": 6, "red": 6}) / "red" / "3.jpg"
        broken.write_bytes(broken.read_bytes()[:-100])
    before = sorted(workplace.iterdir())
    usual = ["--trainer.devices=1", "--trainer.accelerator=cpu", "--data.batch_size=64"]
    assert complaint in one_line(lambda: fit(*usual, *flags.split()), capsys)
    assert sorted(workplace.iterdir()) == before


def test_early_stopping_works_with_validation_by_the_clock_and_says_that_it_stopped(workplace, capsys):
    early = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=train/loss"]
    clock = ["--trainer.val_check_interval=00:00:00:00", "--trainer.callbacks.stopping_threshold=100"]
    small(*early, *clock)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stopped early")]
    assert line.startswith("stopped early, after epoch 1: Stopping threshold reached: train/loss = ")


def test_what_watches_a_metric_that_is_there_in_its_own_mode_runs_and_its_config_runs_again(workplace):
    """``Timer`` has a default that is no plain data; EarlyStopping's mode is what the user says of the best checkpoint."""
    callbacks = "--trainer.callbacks+=EarlyStopping --trainer.callbacks+=Timer --trainer.callbacks.duration=00:12:00:00"
    plateau = "--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/loss"
    steps = "--model.lr_scheduler_interval=step --trainer.val_check_interval=1"
    small("--monitor=val/accuracy", "--mode=min", *callbacks.split(), *plateau.split(), *steps.split())
    config = workplace / "runs" / "run" / "config.yaml"
    fit(f"--config={config}", "--name=again", "--trainer.fast_dev_run=true")
