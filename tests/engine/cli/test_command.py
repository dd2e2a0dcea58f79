"""The command line: which value wins, and what a mistake is answered with."""

import sys

import pytest
import torch
import yaml
from lightning.pytorch.strategies import FSDPStrategy

from project import check_data, report, sweep
from project.engine.cli.command import one_line_errors, require_supported_strategy
from project.engine.errors import UserError
from project.evaluate import EvaluateCLI
from project.fit import FitCLI

CONFIG_A = """
data: {class_path: project.data.SyntheticFlowersDataModule, init_args: {batch_size: 8, train_size: 40}}
model: {arch: resnet34, layer_decay: 0.3}
"""
CONFIG_B = """
model: {layer_decay: 0.4}
"""


def printed_config(capsys, monkeypatch, *args):
    """What ``--print_config`` prints, parsed."""
    monkeypatch.setattr(sys, "argv", ["fit", *args, "--print_config"])
    with pytest.raises(SystemExit) as stop:
        FitCLI()
    assert stop.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.fixture
def configs(workplace):
    (workplace / "a.yaml").write_text(CONFIG_A)
    (workplace / "b.yaml").write_text(CONFIG_B)


def test_later_configs_and_then_flags_win(configs, capsys, monkeypatch):
    args = ["--config=a.yaml", "--config=b.yaml", "--data.batch_size=4"]
    config = printed_config(capsys, monkeypatch, *args)
    assert config["model"]["init_args"]["arch"] == "resnet34"
    assert config["model"]["init_args"]["layer_decay"] == 0.4
    assert config["data"]["init_args"]["batch_size"] == 4
    assert config["data"]["init_args"]["train_size"] == 40


def test_the_printed_config_is_a_config(configs, capsys, monkeypatch, workplace):
    config = printed_config(capsys, monkeypatch, "--config=a.yaml", "--model.optimizer=AdamW", "--name=x")
    (workplace / "printed.yaml").write_text(yaml.safe_dump(config))
    assert printed_config(capsys, monkeypatch, "--config=printed.yaml") == config


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        (["--trainer.max_epocs=2"], "there is no option '--trainer.max_epocs'; did you mean --trainer.max_epochs"),
        (["--modl.arch=resnet18"], "there is no option '--modl.arch'; did you mean --model.arch"),
        (["--data.batch_sise=2"], "has no option 'batch_sise'; did you mean --data.batch_size"),
        (["--model.optimizer.lrr=2"], "SGD has no option 'lrr'; did you mean --model.optimizer.lr"),
        (["--data=FlowrsDataModule"], "there is no ImageDataModule 'FlowrsDataModule'; did you mean FlowersDataModule"),
        (["--data=project.data.FlowrsDataModule"], "did you mean FlowersDataModule"),
        (["--data=torch.nn.Linear"], "--data: there is no ImageDataModule 'torch.nn.Linear'"),
        (["--model.optimizer=SDG"], "there is no Optimizer 'SDG'; did you mean SGD"),
        (["--trainer.callbacks=EarlyStoping"], "there is no Callback 'EarlyStoping'; did you mean EarlyStopping?"),
        (["--data.batch_size=many"], "--data.batch_size: expected PositiveInt, not 'many'"),
        (["--trainer.max_epochs=many"], "--trainer.max_epochs: expected int, not 'many'"),
        (["--model.test_time_augmentation="], "_augmentation: expected flip, flip_and_shift, not ''"),
        (["--model.class_names=x"], "--model.class_names cannot be given: it follows from data.class_names"),
        (["--model.preprocessing={}"], "--model.preprocessing cannot be given: it follows from data.preprocessing"),
        (["--data.seed=3"], "--data.seed cannot be given: it follows from seed_everything"),
        (["--data=FolderDataModule"], "--data.root is required"),
        (["--config=nowhere.yaml"], "--config: 'nowhere.yaml' cannot be read: No such file"),
        (["--config=typo.yaml"], "there is no option '--trainer.max_epocs'; did you mean --trainer.max_epochs"),
        (["--config=torn.yaml"], "torn.yaml, line 1: expected ',' or ']'"),
        (["extra"], "there is no option 'extra'"),
    ],
)
def test_a_typo_gives_one_line_with_the_nearest_names_and_code_2(workplace, capsys, monkeypatch, args, answer):
    (workplace / "typo.yaml").write_text("trainer: {max_epocs: 3}")
    (workplace / "torn.yaml").write_text("trainer: {max_epochs: [3")
    monkeypatch.setattr(sys, "argv", ["fit", *args])
    with pytest.raises(SystemExit) as stop:
        FitCLI()
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    assert line.startswith("error: ")
    assert answer in line


@pytest.mark.parametrize("rank", [0, 3])
def test_too_little_memory_on_a_gpu_is_one_line_of_the_process_that_has_it(capsys, monkeypatch, rank):
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    with pytest.raises(SystemExit) as stop, one_line_errors():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a smaller --data.batch_size" in line


def test_a_strategy_that_shards_weights_is_refused():
    with pytest.raises(UserError, match="FSDPStrategy does not keep all weights on each device; use ddp"):
        require_supported_strategy(FSDPStrategy())


def test_evaluate_asks_for_its_checkpoint(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["evaluate"])
    with pytest.raises(SystemExit) as stop:
        EvaluateCLI()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: --checkpoint: expected str, not 'None'\n"


@pytest.mark.parametrize(("parse", "name"), [(report.parse, "RUN"), (check_data.parse, "DATA"), (sweep.parse, "FILE")])
def test_what_has_no_option_is_not_asked_for_by_one(capsys, parse, name):
    with pytest.raises(SystemExit) as stop:
        parse([])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {name} is missing")
    assert "--help" in line
