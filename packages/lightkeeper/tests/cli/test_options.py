"""What was given to a class is kept, in whatever order of configs, classes and arguments."""

from typing import Any, ClassVar

import pytest
import yaml
from lightkeeper.cli._command_line import CommandLine
from lightning.pytorch.cli import OptimizerCallable
from torch.optim import Adam

from tests.cli.test_configs import ParsingOnly, split
from tests.stubs import Files
from tests.toy import ToyClassifier, ToyData, cases


class Model(ToyClassifier):
    """A model with more options."""

    def __init__(
        self,
        *args: Any,
        arch: str = "resnet18",
        arch_args: dict[str, Any] | None = None,
        layer_decay: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)


class OwnModel(Model):
    """A model of one's own, with other defaults."""

    def __init__(
        self,
        *args: Any,
        gamma: float = 1.0,
        layer_decay: float = 0.2,
        optimizer: OptimizerCallable = lambda params: Adam(params, lr=0.25, eps=0.5),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, layer_decay=layer_decay, optimizer=optimizer, **kwargs)


class Command(ParsingOnly):
    classes = {"data": ToyData, "model": Model}
    path_classes: ClassVar = {"root": Files}


def plain(found: Any) -> Any:
    """The value of an option; a class is its name."""
    if isinstance(found, list | tuple):
        return [plain(one) for one in found]
    return found.class_path.rpartition(".")[2] if "class_path" in str(found) else found


def require_values(args: list[str], expected: str) -> None:
    """Compares options by the names that flags have."""
    config = Command(args).config
    for name, value in yaml.safe_load(f"{{{expected}}}").items():
        option: Any = config
        for part in name.split("."):
            option = option.init_args[part] if "class_path" in option else option[part]
        assert (name, plain(option)) == (name, value)


TOY = f"{ToyData.__module__}.ToyData"
MODEL = (
    f"--model={__name__}.OwnModel --model.gamma=2 --model.arch=resnet34 --model.optimizer.eps=0.1"
)
DATA = f"--config={{data: {{class_path: {TOY}, init_args: {{batch_size: 8, repeats: 3}}}}}}"
ADAMW = "--model.optimizer=AdamW --model.optimizer.lr=0.003 --model.optimizer.betas=[0.8,0.9]"
STEPS = "lr_scheduler: {class_path: StepLR, init_args: {step_size: 3}}"
STEPPED = "model.lr_scheduler: StepLR, model.lr_scheduler.step_size: 3, model.arch: resnet34, model.optimizer.lr: 0.001"
KEPT = f"""
{DATA} --data=Files --data.root=x --data.repeats=2 -> data.root: x, data.repeats: 2, data.batch_size: 8
{ADAMW} -> model.optimizer: AdamW, model.optimizer.betas: [0.8, 0.9], model.optimizer.weight_decay: 0.01
{ADAMW.replace("r=A", "r.class_path=torch.optim.A").replace("r.lr", "r.init_args.lr")} -> model.optimizer.lr: 0.003
{MODEL} -> model.gamma: 2.0, model.layer_decay: 0.2, model.optimizer.lr: 0.25, model.optimizer.eps: 0.1
--trainer.logger=CSVLogger --trainer.logger.save_dir=x -> trainer.logger.save_dir: x
--trainer.default_root_dir=#1 -> trainer.default_root_dir: "#1"
--model.arch=resnet34 --model.optimizer=AdamW --model.lr_scheduler=StepLR --model.lr_scheduler.step_size=3 -> {STEPPED}
--config={{model: {{arch: resnet34, optimizer: AdamW, {STEPS}}}}} -> {STEPPED}
--config={{model: {{class_path: Model, init_args: {{optimizer: AdamW, {STEPS}}}, arch: resnet34}}}} -> {STEPPED}
--config={{model: {{init_args: {{arch: resnet34, optimizer.class_path: AdamW, {STEPS}}}}}}} -> {STEPPED}
--config={{trainer: {{logger: {{class_path: CSVLogger, init_args: {{name: a}}}}}}}} --trainer.logger=null -> trainer.logger: null
--data={TOY} --data.batch_size=4 -> data.val: 24, data.test: 25
--data=. --data.label_from=[0-9] --data.group=a: b -> data.label_from: '[0-9]', data.group: 'a: b'
--config={{data.group: a}} --data=. --data.group=null -> data.group: null
--config={{model.arch_args: {{a: 1e-3, b: yes}}, name: 2020-01-01}} -> model.arch_args: {{a: 0.001, b: true}}, name: '2020-01-01'
--data=. --data.group=😀 --name=1e2 -> data.group: 😀, name: '1e2'
--config={{name: "😀\\u2028", data.group: '1.e5'}} --data=. -> name: "😀\\u2028", data.group: '1.e5'
""".strip().splitlines()


@cases("row", *KEPT)
def test_options_are_kept_in_any_order_of_configs_classes_and_arguments_and_when_saved(
    row, workplace
):
    words, expected = row.split(" -> ")
    given = split(words)
    rotations = [
        [*given[first:], *given[:first]] for first in range(len(given))
    ]  # each pair in both orders
    for order in [*rotations, given[::-1]]:
        require_values(order, expected)
    cli = Command(given)
    (workplace / "saved.yaml").write_text(cli.parser.dump(cli.config, skip_unset=False), "utf-8")
    require_values(["--config=saved.yaml"], expected)


def test_an_option_that_takes_no_value_leaves_the_next_word_alone():
    line = CommandLine(["--calibrate", "best.ckpt", "--split", "val"], ["--calibrate"])
    assert line.positionals == ["best.ckpt"]
    assert line.flags == ["--calibrate", "best.ckpt", "--split=val"]


A = "--config={trainer: {max_epochs: 1}, model: {layer_decay: 0.1, arch: resnet34, arch_args: {a: 1}}}"
B = "--config={trainer.max_epochs: 2, model.arch: resnet50, model.arch_args: {b: 2}}"
SGD = "--config={model.optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.3, weight_decay: 0.2}}}"
MOMENTUM = SGD.replace("0.2}", "0.2, momentum: 0.8}")
NOTE = "--model.optimizer: AdamW does not accept momentum of an earlier config"
V2 = "torchvision.transforms.v2"
LR = "--config={model: {optimizer: {class_path: AdamW, init_args: {lr: 0.01}}}}"
AUGMENT = (
    f"--config={{data: {{class_path: {TOY}, init_args: {{train_transforms: [{V2}.RandAugment]}}}}}}"
)
MORE = f"--config={{data: {{train_transforms+: [{{class_path: {V2}.RandomErasing}}]}}, trainer.callbacks+: Timer}}"
LATER = f"""
{A} --trainer.max_epochs=3 {B} -> trainer.max_epochs: 3, model.arch: resnet50, model.layer_decay: 0.1, model.arch_args: {{b: 2}}
{B} {A} -> trainer.max_epochs: 1, model.arch: resnet34, model.layer_decay: 0.1
{SGD} {LR} -> model.optimizer: AdamW, model.optimizer.lr: 0.01, model.optimizer.weight_decay: 0.2
{SGD} --model.optimizer=AdamW -> model.optimizer: AdamW, model.optimizer.lr: 0.3
{MOMENTUM} --model.optimizer=AdamW -> model.optimizer: AdamW, model.optimizer.lr: 0.3 -> {NOTE}
{MOMENTUM} {LR} -> model.optimizer: AdamW, model.optimizer.lr: 0.01 -> {NOTE}
{MOMENTUM} --config={{model.optimizer: AdamW}} -> model.optimizer: AdamW, model.optimizer.weight_decay: 0.2 -> {NOTE}
{LR} {MOMENTUM} -> model.optimizer: SGD, model.optimizer.momentum: 0.8
{AUGMENT} {MORE} --data.train_transforms+={V2}.Identity -> data.train_transforms: [RandAugment, RandomErasing, Identity]
{AUGMENT} --config={{data.train_transforms+: {V2}.Identity}} -> data.train_transforms: [RandAugment, Identity]
{MORE} --trainer.callbacks+=DeviceStatsMonitor -> trainer.callbacks: [Timer, DeviceStatsMonitor]
{MORE} -> data.train_transforms: [RandomErasing], trainer.callbacks: [Timer]
--config={{trainer.logger: {{class_path: CSVLogger, init_args: {{name: a}}}}}} --config={{trainer.logger+: CometLogger}} -> trainer.logger: [CSVLogger, CometLogger]
--config={{trainer: {{logger: false}}, data: null}} -> trainer.logger: false
""".strip().splitlines()  # noqa: E501


@cases("row", *LATER)
def test_flags_win_over_later_configs_these_over_earlier_ones_and_a_plus_adds_to_a_list(
    row, capsys
):
    """What a new class does not accept of an earlier config is dropped with a note."""
    words, expected, *notes = row.split(" -> ")
    require_values(split(words), expected)
    assert capsys.readouterr().err.splitlines() == notes


@cases(
    "content error",
    ("import no_such_package", ModuleNotFoundError),
    ("from lightkeeper.images import NoSuchName", ImportError),
    ("{}.no_such_attribute", AttributeError),
)
@cases("option", "--model=", "--trainer.callbacks+=")
def test_a_bug_in_the_module_that_a_path_names_is_no_misspelt_name(
    tmp_path, monkeypatch, option, content, error
):
    (tmp_path / "module_with_a_bug.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error):
        Command([f"{option}module_with_a_bug.Thing"])
