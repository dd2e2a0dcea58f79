"""What was given to a class is kept, in whatever order; ``--help`` fits two screens and is written by the docstrings."""

import inspect
import re
import shlex
from typing import Any

import pytest
import yaml
from lightkeeper.exact import UserError
from lightning.pytorch.cli import OptimizerCallable
from torch.optim import Adam

from project import predict
from project.data import FolderDataModule, ImageDataModule
from project.fit import FitCLI
from project.model import ImageClassifier
from project.model.networks import find_builder
from tests.conftest import cases


class ParsingOnly(FitCLI):
    def before_instantiate_classes(self):
        pass

    def instantiate_classes(self):
        pass


def parse(*args):
    return ParsingOnly([*args]).config


class OwnModel(ImageClassifier):
    """A model of one's own.

    Args:
        gamma: An option of one's own.
        kwargs: As of ImageClassifier.
    """

    def __init__(
        self,
        *args: Any,
        gamma: float = 1.0,
        layer_decay: float = 0.2,
        optimizer: OptimizerCallable = lambda params: Adam(params, lr=0.25, eps=0.5),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, layer_decay=layer_decay, optimizer=optimizer, **kwargs)  # type: ignore[misc]


def plain(found: Any) -> Any:
    """The value of an option; a class is its name."""
    if isinstance(found, list | tuple):
        return [plain(one) for one in found]
    return found.class_path.rpartition(".")[2] if "class_path" in str(found) else found


def require_values(args: list[str], expected: str) -> None:
    """Compares options by the names that flags have."""
    config = parse(*args)
    for name, value in yaml.safe_load(f"{{{expected}}}").items():
        option: Any = config
        for part in name.split("."):
            option = option.init_args[part] if "class_path" in option else option[part]
        assert (name, plain(option)) == (name, value)


def split(words: str) -> list[str]:
    return re.split(" (?=--)", words)


OWN_MODEL = f"{__name__}.OwnModel"
MODEL = f"--model={OWN_MODEL} --model.gamma=2 --model.arch=resnet34 --model.optimizer.eps=0.1"
DATA = "--config={data: {class_path: project.data.SyntheticFlowersDataModule, init_args: {batch_size: 8, image_size: 48}}}"
ADAMW = "--model.optimizer=AdamW --model.optimizer.lr=0.003 --model.optimizer.betas=[0.8,0.9]"
STEPS = "lr_scheduler: {class_path: StepLR, init_args: {step_size: 3}}"
STEPPED = "model.lr_scheduler: StepLR, model.lr_scheduler.step_size: 3, model.arch: resnet34, model.optimizer.lr: 0.001"
KEPT = f"""
{DATA} --data=FolderDataModule --data.root=x --data.image_size=32 -> data.root: x, data.image_size: 32, data.batch_size: 8
{ADAMW} -> model.optimizer: AdamW, model.optimizer.betas: [0.8, 0.9], model.optimizer.weight_decay: 0.01
{ADAMW.replace("r=A", "r.class_path=torch.optim.A").replace("r.lr", "r.init_args.lr")} -> model.optimizer.lr: 0.003
{MODEL} -> model.gamma: 2.0, model.layer_decay: 0.2, model.optimizer.lr: 0.25, model.optimizer.eps: 0.1
--trainer.logger=CSVLogger --trainer.logger.save_dir=x -> trainer.logger.save_dir: x
--model.arch=resnet34 --model.optimizer=AdamW --model.lr_scheduler=StepLR --model.lr_scheduler.step_size=3 -> {STEPPED}
--config={{model: {{arch: resnet34, optimizer: AdamW, {STEPS}}}}} -> {STEPPED}
--config={{model: {{class_path: ImageClassifier, init_args: {{optimizer: AdamW, {STEPS}}}, arch: resnet34}}}} -> {STEPPED}
--config={{model: {{init_args: {{arch: resnet34, optimizer.class_path: AdamW, {STEPS}}}}}}} -> {STEPPED}
--config={{trainer: {{logger: {{class_path: CSVLogger, init_args: {{name: a}}}}}}}} --trainer.logger=null -> trainer.logger: null
--data=tests.stubs.NoiseDataModule --data.batch_size=4 -> data.val: 7, data.test: 11
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
    cli = ParsingOnly(given)
    (workplace / "saved.yaml").write_text(cli.parser.dump(cli.config, skip_unset=False), "utf-8")
    require_values(["--config=saved.yaml"], expected)


A = "--config={trainer: {max_epochs: 1}, model: {layer_decay: 0.1, arch: resnet34, arch_args: {a: 1}}}"
B = "--config={trainer.max_epochs: 2, model.arch: resnet50, model.arch_args: {b: 2}}"
SGD = "--config={model.optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.3, weight_decay: 0.2}}}"
MOMENTUM = SGD.replace("0.2}", "0.2, momentum: 0.8}")
NOTE = "--model.optimizer: AdamW does not accept momentum of an earlier config"
V2, LR = (
    "torchvision.transforms.v2",
    "--config={model: {optimizer: {class_path: AdamW, init_args: {lr: 0.01}}}}",
)
AUGMENT = f"--config={{data: {{class_path: tests.stubs.NoiseDataModule, init_args: {{train_transforms: [{V2}.RandAugment]}}}}}}"
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


class ByF1(ParsingOnly):
    """A command of an owner's, who sets all defaults in one place."""

    defaults = {**FitCLI.defaults, "monitor": "val/f1"}


def test_the_default_metric_of_the_best_checkpoint_is_set_where_defaults_are(capsys):
    assert ByF1([]).config.monitor == "val/f1"
    assert ByF1(["--monitor=val/loss"]).config.monitor == "val/loss"
    text, _ = names_shown(ByF1, "--help", capsys=capsys)
    assert "--monitor val/f1 " in text


def names_shown(command, *args, capsys) -> tuple[str, set[str]]:
    """The text of help, and the options that it shows."""
    with pytest.raises(SystemExit, match=r"^0$"):
        command([*args])
    text = capsys.readouterr().out
    return text, {line.split()[0] for line in text.splitlines() if line.startswith("  --")}


def test_the_help_of_fit_is_one_page_of_all_options_that_are_not_advanced(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "110")
    text, names = names_shown(FitCLI, "--help", capsys=capsys)
    lines = text.splitlines()
    assert 50 <= len(lines) <= 110
    classes = FolderDataModule.__mro__[: FolderDataModule.__mro__.index(ImageDataModule) + 1]
    follow = {"--data.seed", "--data.kwargs", "--model.class_names", "--model.preprocessing"}
    for option, cls in [*(("data", cls) for cls in classes), ("model", ImageClassifier)]:
        advanced = re.findall(r"^ *(\w+): Advanced: ", inspect.getdoc(cls) or "", re.M)
        usual = inspect.signature(cls).parameters.keys() - {*advanced}
        assert {f"--{option}.{name}" for name in usual} - names <= follow
    examples = [line for line in lines if line.startswith("  python -m project.fit ")]
    assert len(examples) == 3
    for example in examples[1:]:
        parse(*shlex.split(example)[3:])


def test_the_rest_and_a_class_of_ones_own_are_in_help_all(capsys):
    text, names = names_shown(ParsingOnly, f"--model={OWN_MODEL}", "--help-all", capsys=capsys)
    own = {f"--data.{name}" for name in inspect.signature(FolderDataModule).parameters}
    own |= {"--data.prefetch_factor", "--model.layer_decay", "--model.gamma"}
    assert own - {"--data.kwargs"} <= names
    assert "--trainer.check_val_every_n_epoch" in text
    assert "--model OwnModel: A model of one's own" in text


@cases(
    "content error",
    ("import no_such_package", ModuleNotFoundError),
    ("from project.model import NoSuchName", ImportError),
    ("{}.no_such_attribute", AttributeError),
)
def test_a_bug_in_the_module_that_a_path_names_is_no_misspelt_name(
    tmp_path, monkeypatch, content, error
):
    (tmp_path / "module_with_a_bug.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error):
        parse("--model=module_with_a_bug.Model")
    with pytest.raises(error):
        parse("--trainer.callbacks+=module_with_a_bug.Watch")
    with pytest.raises((error, UserError)):
        find_builder("module_with_a_bug.Network")


def test_the_help_of_other_commands_has_whole_sentences():
    text = " ".join(predict.parser().format_help().split())
    assert "A CSV file; by default the rows go to standard output" in text
