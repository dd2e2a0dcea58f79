"""What cannot work is refused in one line, the cheap before the expensive, and leaves no run folder."""

from importlib.util import find_spec
from typing import Any

import pytest
from lightning.pytorch import Callback

from tests.conftest import fit, make_folder
from tests.small import one_line, small

PLATEAU = "--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor"


@pytest.fixture
def no_drawing(monkeypatch):
    """Fails where an image is drawn: what these tests give is wrong already."""

    def draw(*args, **kwargs):
        raise AssertionError("an image was drawn before the options were checked")

    monkeypatch.setattr("project.data.drawn.module.draw_flowers", draw)


def missing(package: str, flags: str) -> Any:
    """A case for where a package that these flags need is not installed."""
    there = pytest.mark.skipif(find_spec(package) is not None, reason=f"{package} is installed")
    return pytest.param(flags, f"Requirement '{package.partition('_ml')[0]}", marks=there)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--model.arch=resnet17", "did you mean resnet18"),
        ("--data.batch_size=0", "--data.batch_size must be"),
        ("--data.num_workers=-1", "--data.num_workers must be"),
        ("--data.crop_padding=-1", "--data.crop_padding must be"),
        (f"--name={'é' * 128}", "--name must be at most 255 bytes long, got 256"),
        ("--trainer.val_check_interval=70", "--trainer.val_check_interval must be at most "),
        ("--name=a/b", "--name 'a/b' must be the name of one folder"),
        ("--trainer.accelerator=gpuu", "these --trainer options do not work here"),
        ("--trainer.devices=none", "these --trainer options do not work here"),
        ("--data.batch_size=1000000", "at most 3200, the number of training images"),
        ("--trainer.strategy=ddp_spawn", "cannot hand their metrics back; use ddp"),
        (
            "--trainer.strategy=DDPStrategy --trainer.strategy.start_method=spawn",
            "cannot hand their metrics back; use ddp",
        ),
        ("--seed_everything=true", "--seed_everything true: give a number"),
        ("--data.val_size=0", "--data.val_size must be"),
        ("--data.image_size=0", "--data.image_size must be"),
        ("--data.crop_padding=64", "--data.crop_padding must be"),
        ("--model.loss.label_smoothing=2", "--model.loss.label_smoothing must be"),
        ("--model.base_batch_size=0", "--model.base_batch_size must be"),
        ("--model.lr_scheduler.warmup_epochs=-1", "--model.lr_scheduler.warmup_epochs must be"),
        ("--model.optimizer.lr=-1", "--model.optimizer: Invalid learning rate"),
        ("--model.optimizer.lr=.nan", "--model.optimizer: lr must be a finite number, got nan"),
        ("--model.optimizer.lr=.inf", "--model.optimizer: lr must be a finite number, got inf"),
        ("--model.lr_scheduler.warmup_epochs=.inf", "--model.lr_scheduler.warmup_epochs must be 0 or more, got inf"),
        ("--model.lr_scheduler=StepLR --model.lr_scheduler.step_size=x", "step_size: expected int"),
        (
            "--model.lr_scheduler=OneCycleLR --model.lr_scheduler.max_lr=1 --model.lr_scheduler.epochs=3",
            "--model.lr_scheduler: You must define",
        ),
        (  # torch divides by the length of the rise, less one
            "--model.lr_scheduler=OneCycleLR --model.lr_scheduler.max_lr=1 --model.lr_scheduler.total_steps=10"
            " --model.lr_scheduler.pct_start=0.1",
            "--model.lr_scheduler: float division by zero",
        ),
        ("--model.weights=missing.pth", "there is no file 'missing.pth'"),
        ("--monitor=val/nope", "no metric of the validation set; there are val/loss, val/accuracy"),
        ("--monitor=test/accuracy", "no metric of the validation set"),
        ("--callbacks.last_checkpoint=3", "--callbacks.last_checkpoint: expected true, false or options"),
        ("--callbacks.last_checkpoint.every=3", "LastCheckpoint has no option 'every'; it has every_minutes"),
        ("--callbacks.last_checkpoint.every_minutes=x", "--callbacks.last_checkpoint.every_minutes: expected float"),
        ("--callbacks.confident_mistakes.count=-1", "--callbacks.confident_mistakes.count must be at least 1, got -1"),
        ("--callbacks.nope=false", "no default callback 'nope'; there are last_checkpoint, best_checkpoint,"),
        ('--config={callbacks:{"nope":false}}', "no default callback 'nope'; there are last_checkpoint"),
        ("--callbacks.confusion=false", "did you mean --callbacks.confusion_matrix?"),
        ("--last_checkpoint.every_minutes=1", "did you mean --callbacks.last_checkpoint.every_minutes"),
        ("--trainer.barebones=true", "python -m benchmarks measures speed"),
        ("--trainer.limit_train_batches=0", "must leave something to train on, got 0"),
        ("--trainer.limit_val_batches=0", "must leave something to measure, got 0"),
        ("--trainer.limit_test_batches=0.0", "must leave something to measure, got 0"),
        ("--trainer.limit_train_batches=0.01", "0.01 of 50 batches is less than one; give at least 0.02"),
        ("--trainer.limit_test_batches=0.001", "--trainer.limit_test_batches 0.001 of 13 batches"),
        ("--trainer.overfit_batches=0.001", "--trainer.overfit_batches 0.001 of 50 batches"),
        ("--trainer.accumulate_grad_batches=0", "--trainer.accumulate_grad_batches must be at least 1, got 0"),
        ("--trainer.check_val_every_n_epoch=0", "--trainer.check_val_every_n_epoch must be at least 1, got 0"),
        ("--trainer.val_check_interval=0", "--trainer.val_check_interval must be above 0, got 0"),
        ("--trainer.log_every_n_steps=-1", "--trainer.log_every_n_steps must be 0 or more, got -1"),
        ("--trainer.gradient_clip_algorithm=value", "clips nothing without --trainer.gradient_clip_val"),
        ("--trainer.gradient_clip_val=-1", "--trainer.gradient_clip_val must be 0 or more, got -1"),
        ("--trainer.val_check_interval=00:00:01:00 --trainer.devices=2", "validate by a clock of its own"),
        (
            "--trainer.callbacks+=EMAWeightAveraging --trainer.callbacks.decay=0.9"
            " --trainer.callbacks+=EMAWeightAveraging",
            "EMAWeightAveraging (decay 0.9) and EMAWeightAveraging (decay 0.999) each average the weights",
        ),
        (
            "--trainer.callbacks+=WeightAveraging --trainer.callbacks+=StochasticWeightAveraging"
            " --trainer.callbacks.swa_lrs=0.1",
            "keep the first and drop StochasticWeightAveraging",
        ),
        ("--model.lr_scheduler=CosineAnnealingLR --model.lr_scheduler.T_max=0", "T_max must be at least 1, got 0"),
        ("--model.lr_scheduler=StepLR --model.lr_scheduler.step_size=0", "step_size must be at least 1, got 0"),
        ("--model.lr_scheduler=LinearLR --model.lr_scheduler.total_iters=0", "total_iters must be at least 1, got 0"),
        ("--trainer.max_epochs=-1", "the cosine schedule must know where training ends"),
        ("--trainer.max_epochs=null --trainer.max_time=00:00:01:00", "the cosine schedule must know"),
        ("--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/nope", "watches 'val/nope'"),
        (
            "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=train/loss --trainer.val_check_interval=7",
            "looks for it after 7 already; set --trainer.log_every_n_steps to 7 or less",
        ),
        ("--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitor=loss", "there are val/loss, val/accuracy"),
        (
            "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/accuracy",
            "EarlyStopping has mode min, but of 'val/accuracy' more is better; add --trainer.callbacks.mode max",
        ),
        (
            "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitor=train/loss --trainer.callbacks.mode=max",
            "ModelCheckpoint has mode max, but of 'train/loss' less is better; add --trainer.callbacks.mode min",
        ),
        (f"{PLATEAU}=val/accuracy", "of 'val/accuracy' more is better; add --model.lr_scheduler.mode max"),
        (f"{PLATEAU}=val/acc", "--model.lr_scheduler: ReduceLROnPlateau watches 'val/acc', which is not logged; there"),
        (f"{PLATEAU}=val/loss --trainer.check_val_every_n_epoch=2", "first after 100 steps, but looks for it after 50"),
        (f"{PLATEAU}=val/loss --model.lr_scheduler_interval=step", "first after 50 steps, but looks for it after 1 "),
        (
            f"{PLATEAU}=train/loss --model.lr_scheduler_interval=step --trainer.log_every_n_steps=2",
            "which is logged after every 2 steps, but looks for it after 1 already",
        ),
        ("--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.save_top_k=3", "No quantity for top_k to track"),
        missing("wandb", "--trainer.logger=WandbLogger"),
        missing("mlflow", "--trainer.logger=MLFlowLogger"),
        missing("comet_ml", "--trainer.logger=CometLogger"),
        missing("torch_xla", "--trainer.plugins=XLACheckpointIO"),
        ("--trainer.plugins=TorchCheckpointIO", "only one that wraps another can be added, such as AsyncCheckpointIO"),
        *(
            (
                f"--trainer.logger=TensorBoardLogger --trainer.logger.{given}",
                "leave save_dir, name, version and sub_dir out",
            )
            for given in ("name=x", "save_dir=tb", "save_dir=/tmp/tb", "save_dir=~", "sub_dir=tb")
        ),
        missing("torch_xla", "--trainer.accelerator=tpu"),
        ("--data=FolderDataModule --data.root=nowhere", "--data.root: there is no folder 'nowhere'"),
        ("--data=FolderDataModule --data.root=broken --data.batch_size=100", "the number of training images, got 100"),
        ("--data=FolderDataModule --data.root=broken --data.batch_size=4", "red/3.jpg' cannot be read as an image"),
    ],
)
def test_what_cannot_work_is_refused_before_an_image_is_drawn_or_a_folder_made(
    workplace, no_drawing, without_initialisation, capsys, flags, complaint
):
    if "broken" in flags:
        broken = make_folder(workplace / "broken", {"blue": 6, "red": 6}) / "red" / "3.jpg"
        broken.write_bytes(broken.read_bytes()[:-100])
    before = sorted(workplace.iterdir())
    line = one_line(
        lambda: fit("--trainer.devices=1", "--trainer.accelerator=cpu", "--data.batch_size=64", *flags.split()), capsys
    )
    assert complaint in line
    assert sorted(workplace.iterdir()) == before


def test_a_command_that_can_work_draws(workplace, no_drawing):
    with pytest.raises(AssertionError, match="an image was drawn"):
        fit("--trainer.devices=1", "--trainer.accelerator=cpu")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--trainer.callbacks+=LearningRateMonitor --trainer.logger=false", "has no logger"),
        ("--trainer.callbacks+=DeviceStatsMonitor --trainer.logger=false", "Cannot use `DeviceStatsMonitor`"),
        ("--trainer.callbacks+=BackboneFinetuning", "BackboneFinetuning: a resumed run would freeze again"),
        ("--trainer.callbacks+=BaseFinetuning", "BaseFinetuning: NotImplementedError"),
        ("--trainer.callbacks+=ProgressiveResizing", "multiple must be below 32"),
        (
            "--trainer.callbacks+=EMAWeightAveraging --trainer.callbacks.update_starting_at_epoch=1",
            "EMAWeightAveraging: update_starting_at_epoch delays no step",
        ),
        ("--trainer.callbacks+=EMAWeightAveraging --trainer.callbacks.update_every_n_steps=0", "it never averages"),
        ("--trainer.callbacks+=EMAWeightAveraging --trainer.callbacks.update_every_n_steps=-1", "0 or more, got -1"),
    ],
)
def test_what_lightning_finds_when_it_starts_is_one_line_and_leaves_no_folder(workplace, capsys, flags, complaint):
    (workplace / "runs" / "other").mkdir(parents=True)
    assert complaint in one_line(lambda: small(*flags.split()), capsys)
    assert [folder.name for folder in (workplace / "runs").iterdir()] == ["other"]


def test_validation_by_the_clock_goes_with_early_stopping(workplace):
    class Count(Callback):
        validations = 0

        def on_validation_end(self, trainer, pl_module):
            self.validations += 1

    count = Count()
    after_each_batch = ["--trainer.val_check_interval=00:00:00:00", "--trainer.max_epochs=1"]
    small(*after_each_batch, "--trainer.callbacks+=EarlyStopping", callbacks=[count])
    assert count.validations >= 4  # the batches of an epoch; early stopping has waited for each of them


@pytest.mark.parametrize(
    "flags",
    [
        f"{PLATEAU}=val/accuracy --model.lr_scheduler.mode=max",
        f"{PLATEAU}=val/loss --model.lr_scheduler_interval=step --trainer.val_check_interval=1",
        f"{PLATEAU}=train/loss --trainer.check_val_every_n_epoch=2",
        "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitor=val/accuracy --trainer.callbacks.mode=max",
        "--trainer.callbacks+=EarlyStopping --monitor=val/accuracy --mode=min",  # as the user says of the best checkpoint
    ],
)
def test_what_watches_a_metric_that_is_there_in_its_own_mode_runs(workplace, flags):
    small(*flags.split())


def test_early_stopping_may_watch_training_in_short_epochs_and_says_that_it_stopped(workplace, capsys):
    early = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=train/loss"]
    small(*early, "--trainer.callbacks.stopping_threshold=100", "--trainer.max_epochs=3")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stopped early")]
    assert line.startswith("stopped early, after epoch 1: Stopping threshold reached: train/loss = ")


def test_what_lightning_finds_late_is_one_line_too(workplace, capsys):
    class Mine(Callback):
        """Stands for code of the user's, which may log anything."""

    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=mine"]
    line = one_line(lambda: small(*stopping, callbacks=[Mine()]), capsys)
    assert "Early stopping conditioned on metric `mine` which is not available" in line
    assert (workplace / "runs" / "run" / "config.yaml").exists()  # it has trained


def test_an_error_in_the_users_own_code_keeps_its_traceback(workplace):
    class Mine(Callback):
        def on_fit_start(self, trainer, pl_module):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        small(callbacks=[Mine()])
    assert not (workplace / "runs").exists()


def test_a_callback_with_a_default_that_is_no_plain_data_is_saved_in_the_config(workplace):
    timer = ["--trainer.callbacks+=Timer", "--trainer.callbacks.duration=00:12:00:00"]
    small(*timer)
    config = workplace / "runs" / "run" / "config.yaml"
    fit(f"--config={config}", "--name=again", "--trainer.fast_dev_run=true")
