"""A mistake is answered with the option that is meant, and with the class that has it."""

import pytest

from project import sweep
from tests.engine.cli.test_command_line import parse
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
        ("--trainer.callbacks.patience=3", "Callback has no option 'patience'; EarlyStopping and "),
        ("--model.lr_scheduler=SequentialLR", "--model.lr_scheduler.schedulers is required by SequentialLR"),
        ("--model.lr_scheduler=ReduceLROnPlateau", "--model.lr_scheduler.monitor is required by ReduceLROnPlateau"),
        ("--model.lr_scheduler.step_size=3", "CosineWithWarmup has no option 'step_size'; StepLR has it"),
        ("--data.root=x", "FolderDataModule and FlowersDataModule have it"),
        ("--model.optimizer=AdamW --model.optimizer.momentum=1", "RMSprop and SGD have it"),
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
        ("--threads=0", "--threads must be >0, got 0"),
        ("--threads=many", "--threads: expected PositiveInt, not 'many'"),
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
        ("--n_trials=0", "--n_trials must be >0, got 0"),
        ("--n_trials=many", "--n_trials: expected PositiveInt, not 'many'"),
        ("--seed=-1", "--seed must be >=0, got -1"),
    ],
)
def test_a_number_that_is_too_small_is_answered_with_what_is_expected(option, answer, capsys):
    assert answer in one_line(lambda: sweep.parse(["search.yaml", option]), capsys)
