"""A mistake is answered with the option that is meant, and with the class that has it."""

import pytest

from project import sweep
from tests.engine.cli.test_given import parse
from tests.small import one_line


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        ("--trainer.callbacks+=LambdaCallback --trainer.callbacks.x=1", "LambdaCallback has no option 'x'"),
        (
            "--trainer.callbacks+=GradientAccumulationScheduler",
            "scheduling is required by GradientAccumulationScheduler",
        ),
        (
            "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitr=x",
            "EarlyStopping has no option 'monitr'; did you mean --trainer.callbacks.monitor?",
        ),
        ("--trainer.callbacks.patience=3", "--trainer.callbacks.patience needs a class; EarlyStopping"),
        ("--model.lr_scheduler=SequentialLR", "--model.lr_scheduler.schedulers is required by SequentialLR"),
        ("--model.lr_scheduler=ReduceLROnPlateau", "--model.lr_scheduler.monitor is required by ReduceLROnPlateau"),
        ("--model.lr_scheduler.step_size=3", "needs a class; StepLR has it, as in --model.lr_scheduler StepLR"),
        ("--data.root=x", "have it, as in --data FolderDataModule"),
        ("--model.optimizer=AdamW --model.optimizer.momentum=1", "have it, as in --model.optimizer SGD"),
        ("--lr=1", "there is no option '--lr'; did you mean --model.optimizer.lr?"),
        ("--epochs=1", "there is no option '--epochs'; did you mean --trainer.max_epochs"),
        ("--batch-size=1", "there is no option '--batch-size'; did you mean --data.batch_size?"),
        ("--seed=1", "there is no option '--seed'; did you mean --seed_everything"),
        ("--model.lr=1", "ImageClassifier has no option 'lr'; did you mean --model.optimizer.lr?"),
        ("--xyzzy=1", "there is no option '--xyzzy'; --help-all lists what there is"),
        ("--data=./nowhere", "--data: there is no folder './nowhere'"),
        ("--model=resnet18", "--model: there is no ImageClassifier 'resnet18'; did you mean --model.arch resnet18?"),
        ("--model.optimizer.lr=high", "--model.optimizer.lr: expected float, not 'high'"),
        ("--model.optimizer.lr", "--model.optimizer.lr needs a value"),
        ("--model.optimizer=Adamw", "there is no Optimizer 'Adamw'; did you mean AdamW?"),
        ("--threads=0", "--threads: expected a whole number above 0, not '0'"),
        ("--threads=many", "--threads: expected a whole number above 0, not 'many'"),
        (
            "--data=FolderDataModule --data.root=. --data.crop_scale=0.5",
            "--data.crop_scale: expected a list as [A,B], not '0.5'",
        ),
        (
            "--model.loss.class_weights=balance",
            "--model.loss.class_weights: expected balanced or a list as [A,B], not 'balance'",
        ),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(args, answer, workplace, capsys):
    assert answer in one_line(lambda: parse(*args.split()), capsys)


def test_lightnings_own_scheduler_is_found_by_its_name(workplace):
    scheduler = parse(
        "--model.lr_scheduler=ReduceLROnPlateau", "--model.lr_scheduler.monitor=val/loss"
    ).model.init_args.lr_scheduler
    assert scheduler.class_path == "lightning.pytorch.cli.ReduceLROnPlateau"
    assert scheduler.init_args.monitor == "val/loss"


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ("--n_trials=0", "--n_trials: expected a whole number above 0, not '0'"),
        ("--n_trials=many", "--n_trials: expected a whole number above 0, not 'many'"),
        ("--seed=-1", "--seed: expected a whole number from 0, not '-1'"),
    ],
)
def test_a_number_that_is_too_small_is_answered_with_what_is_expected(option, answer, capsys):
    assert answer in one_line(lambda: sweep.parse(["search.yaml", option]), capsys)
