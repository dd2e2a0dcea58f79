"""A mistake is answered in one line that names what is meant, and the class that has it."""

import re
from types import SimpleNamespace
from typing import cast

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy

from project import check_data, report, sweep
from project.engine.cli.trainer import require_supported
from project.engine.errors import UserError
from project.evaluate import EvaluateCLI
from tests.engine.cli.test_command_line import OWN_MODEL, parse
from tests.small import one_line

MISTAKES = f"""
--trainer.max_epocs=2 -> there is no option '--trainer.max_epocs'; did you mean --trainer.max_epochs
--modl.arch=resnet18 -> there is no option '--modl.arch'; did you mean --model.arch
--data.batch_sise=2 -> has no option 'batch_sise'; did you mean --data.batch_size
--model.optimizer.lrr=2 -> SGD has no option 'lrr'; did you mean --model.optimizer.lr
--model={OWN_MODEL} --model.gama=2 -> OwnModel has no option 'gama'; did you mean --model.gamma?
--model.momentum=2 -> ImageClassifier has no option 'momentum'; did you mean --model.optimizer.momentum?
--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitr=x -> did you mean --trainer.callbacks.monitor?
--lr=1 -> there is no option '--lr'; did you mean --model.optimizer.lr?
--epochs=1 -> there is no option '--epochs'; did you mean --trainer.max_epochs
--batch-size=1 -> there is no option '--batch-size'; did you mean --data.batch_size?
--xyzzy=1 -> there is no option '--xyzzy'; --help-all lists what there is
--trainer.max_ep=3 -> there is no option '--trainer.max_ep'
extra -> there is no option 'extra'
--trainer.callbacks.patience=3 -> Callback has no option 'patience'; EarlyStopping and
--model.lr_scheduler.step_size=3 -> CosineWithWarmup has no option 'step_size'; StepLR has it
--data.root=x -> SyntheticFlowersDataModule has no option 'root'; CSVDataModule, FolderDataModule and FlowersDataModule
--model.optimizer.momentum=1 --model.optimizer=AdamW -> AdamW has no option 'momentum'; Muon, RMSprop and SGD have it
--config={{model.optimizer: {{class_path: SGD, init_args: {{momentum: 0.8}}}}}} --model.optimizer=AdamW -> no option 'momentum'
--data=FlowrsDataModule -> there is no ImageDataModule 'FlowrsDataModule'; did you mean FlowersDataModule
--data=torch.nn.Linear -> --data: there is no ImageDataModule 'torch.nn.Linear'
--data=./nowhere -> --data: there is no folder './nowhere'
--config={{data: {{class_path: 3}}}} -> --data: there is no ImageDataModule '3'
--model=resnet18 -> --model: there is no ImageClassifier 'resnet18'; did you mean --model.arch resnet18?
--config={{model.loss: {{class_path: os.getpid, init_args: {{a: 3}}}}}} -> --model.loss: there is no Module 'os.getpid'
--model.loss=my_own -> there is no Module 'my_own'; name your own with its module, as in my_module.my_own
--model.optimizer=Adamw -> there is no Optimizer 'Adamw'; did you mean AdamW?
--model.optimizer=torch.optim.AdamWW -> --model.optimizer: there is no Optimizer 'torch.optim.AdamWW'; did you mean AdamW
--trainer.callbacks=EarlyStoping -> there is no Callback 'EarlyStoping'; did you mean EarlyStopping?
--data=FolderDataModule -> --data.root is required
--model.lr_scheduler=ReduceLROnPlateau -> --model.lr_scheduler.monitor is required by ReduceLROnPlateau
--model.optimizer.lr -> --model.optimizer.lr needs a value
--data.batch_size=many -> --data.batch_size: expected PositiveInt, not 'many'
--model.optimizer.lr=high -> --model.optimizer.lr: expected float, not 'high'
--trainer.limit_val_batches=many -> --trainer.limit_val_batches: expected int or float, not 'many'
--model.test_time_augmentation= -> _augmentation: expected flip, flip_and_shift, not ''
--data=FolderDataModule --data.root=. --data.crop_scale=1 -> --data.crop_scale: expected a list as [A,B], not '1'
--model.loss.class_weights=balance -> class_weights: expected balanced or a list as [A,B], not 'balance'
--model.class_names=x -> --model.class_names cannot be given: it follows from data.class_names
--config={{model: {{class_names: [a]}}}} -> --model.class_names cannot be given: it follows from data.class_names
--seed_everything=true -> --data.seed: expected int, not 'True'
--data.seed=3 -> --data.seed cannot be given: it follows from seed_everything
--config={{trainer: {{max_epocs: 3}}}} -> there is no option '--trainer.max_epocs'; did you mean --trainer.max_epochs
--config={{data: {{train_transforms+: [1]}}}} -> --data.train_transforms: Type collections.abc.Callable
--config=nowhere.yaml -> --config: 'nowhere.yaml' cannot be read: [Errno 2] No such file
""".strip().splitlines()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_type(mistake, workplace, capsys):
    args, answer = mistake.split(" -> ")
    assert answer in one_line(lambda: parse(*re.split(" (?=--)", args)), capsys)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (bytes(range(256)), "'c.yaml' cannot be read: 'utf-8' codec can't decode"),
        (b"trainer: {max_epochs: [3", "c.yaml, line 1: expected ',' or ']'"),
        (b"trainer: !!python/object/apply:os.system [exit]", "c.yaml, line 1: could not determine a constructor"),
        (b"trainer:\n  max_epochs: 3\n  max_epochs: 4", "'max_epochs' is given twice"),
        (b"data:\n  transforms+: [a]\n  transforms: [b]", "'transforms' is given twice"),
        (b"hello", "c.yaml: expected 'option: value', got 'hello'"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_line(text, answer, workplace, capsys):
    (workplace / "c.yaml").write_bytes(text)
    assert answer in one_line(lambda: parse("--config=c.yaml"), capsys)


@pytest.mark.parametrize(
    ("command", "args", "answer"),
    [
        (EvaluateCLI, [], "CHECKPOINT is missing, as in: "),
        (report.parse, ["x", "--data.root=x"], "there is no option '--data.root'; did you mean --root?"),
        (report.parse, [], "RUN is missing, as in: "),
        (check_data.parse, [], "DATA is missing, as in: "),
        (sweep.parse, [], "FILE is missing, as in: "),
        (sweep.parse, ["search.yaml", "--n_trials=0"], "--n_trials must be >0, got 0"),
    ],
)
def test_other_commands_answer_alike(command, args, answer, capsys):
    assert answer in one_line(lambda: command(args), capsys)


def test_a_strategy_that_shards_the_weights_is_refused():
    with pytest.raises(UserError, match="FSDPStrategy does not keep all weights on each device; use ddp"):
        require_supported(cast(Trainer, SimpleNamespace(strategy=FSDPStrategy())))
