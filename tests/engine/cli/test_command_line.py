"""What was given to a class is kept, in whatever order; ``--help`` fits two screens and is written by the docstrings."""

import inspect
import shlex
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import OptimizerCallable
from torch.optim import Adam, AdamW

from project.data import CIFAR10DataModule, FolderDataModule, ImageDataModule
from project.engine.cli.configs import read_config
from project.engine.cli.trainer import ExactTrainer
from project.engine.loading.data_module import ReproducibleDataModule
from project.evaluate import EvaluateCLI
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import cases


class ParsingOnly(FitCLI):
    def before_instantiate_classes(self):
        pass

    def instantiate_classes(self):
        pass


@cache
def command():
    return ParsingOnly([])


def parse(*args):
    cli = command()
    cli.parse_arguments(cli.parser, args)
    return cli.config


class OwnModel(ImageClassifier):
    """A model of one's own.

    Args:
        gamma: An option of one's own.
        layer_decay: Another default.
        optimizer: Another default.
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


OWN_MODEL = f"{__name__}.OwnModel"
MODEL = [f"--model={OWN_MODEL}", "--model.gamma=2", "--model.arch=resnet34", "--model.optimizer.eps=0.1"]
CONFIG = "data: {class_path: project.data.SyntheticFlowersDataModule, init_args: {batch_size: 8, image_size: 48}}"
DATA = "--data=FolderDataModule --data.root=x --data.image_size=32 --config=c.yaml"
ADAMW = "--model.optimizer=AdamW --model.optimizer.lr=0.003 --model.optimizer.betas=[0.8,0.9]"
IN_FULL = ADAMW.replace("r=A", "r.class_path=torch.optim.A").replace("r.lr", "r.init_args.lr")
OPTIMIZER = {"class_path": "torch.optim.AdamW", "init_args.lr": 0.003, "init_args.betas": (0.8, 0.9)}
LOGGER = "--trainer.logger=CSVLogger --trainer.logger.save_dir=x"


@cases(
    "words place expected",
    (DATA, "data.init_args", {"root": "x", "image_size": 32, "batch_size": 8, "on_bad_image": "error"}),
    (ADAMW, "model.init_args.optimizer", {**OPTIMIZER, "init_args.weight_decay": 0.01}),
    (IN_FULL, "model.init_args.optimizer", OPTIMIZER),
    (" ".join(MODEL), "model.init_args", {"gamma": 2.0, "layer_decay": 0.2, "arch": "resnet34"}),
    (" ".join(MODEL), "model.init_args.optimizer.init_args", {"lr": 0.25, "eps": 0.1}),
    (LOGGER, "trainer.logger.init_args", {"save_dir": "x"}),
)
def test_options_are_kept_in_any_order(words, place, expected, workplace):
    (workplace / "c.yaml").write_text(CONFIG)
    words = words.split()
    rotations = [[*words[first:], *words[:first]] for first in range(len(words))]  # each pair in both orders
    for order in [*rotations, words[::-1]]:
        found = parse(*order)[place]
        assert {name: found[name] for name in expected} == expected


def test_a_newly_named_class_starts_from_its_own_defaults(workplace):
    for key, cls in (("model.optimizer", AdamW), ("data", CIFAR10DataModule)):
        found = vars(parse(f"--{key}={cls.__name__}")[key.replace("model.", "model.init_args.")].init_args)
        for name, parameter in inspect.signature(cls).parameters.items():
            if parameter.default is not inspect.Parameter.empty and name != "seed":
                assert found[name] == parameter.default


STEPS = "lr_scheduler: {class_path: StepLR, init_args: {step_size: 3}}"


@cases(
    "text",
    f"model: {{arch: resnet34, optimizer: AdamW, {STEPS}}}",
    "model: {optimizer.class_path: AdamW, arch: resnet34, lr_scheduler.class_path: StepLR,"
    " lr_scheduler.init_args.step_size: 3}",
    f"model: {{class_path: ImageClassifier, init_args: {{arch: resnet34, optimizer: AdamW, {STEPS}}}}}",
    f"model: {{init_args: {{arch: resnet34, optimizer: AdamW, {STEPS}}}}}",
)
def test_a_config_may_name_the_class_or_leave_it_out(workplace, text):
    (workplace / "c.yaml").write_text(text)
    flags = ["--model.lr_scheduler=StepLR", "--model.lr_scheduler.step_size=3", "--model.optimizer=AdamW"]
    model = parse("--config=c.yaml").model
    assert model == parse("--model=ImageClassifier", "--model.arch=resnet34", *flags).model
    assert model.init_args.optimizer.init_args.lr == 0.001  # torch's own
    assert parse("--config=c.yaml", "--model.lr_scheduler=null").model.init_args.lr_scheduler is None


def test_flags_win_over_configs_and_later_configs_over_earlier_ones_wherever_they_stand(workplace):
    (workplace / "a.yaml").write_text("{trainer: {max_epochs: 1}, model: {layer_decay: 0.1, arch: resnet34}}")
    (workplace / "b.yaml").write_text("{trainer.max_epochs: 2, model.arch: resnet50}")
    for order in permutations(["--trainer.max_epochs=3", "--config=a.yaml", "--config=b.yaml"]):
        config = parse(*order)
        later = "resnet50" if order.index("--config=b.yaml") > order.index("--config=a.yaml") else "resnet34"
        found = config.trainer.max_epochs, config.model.init_args.arch, config.model.init_args.layer_decay
        assert found == (3, later, 0.1)


def test_a_later_config_names_another_class_and_keeps_what_it_accepts(workplace, capsys):
    """What only repeats the old class's default goes silently, anything else that it does not accept with a note."""
    text = "model.optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.3, weight_decay: 0.2, dampening: 0.0%s}}"
    (workplace / "base.yaml").write_text(text % "")
    (workplace / "momentum.yaml").write_text(text % ", momentum: 0.8")
    for later in ("model: {optimizer: {class_path: AdamW, init_args: {lr: 0.01}}}", "model.optimizer: AdamW"):
        (workplace / "later.yaml").write_text(later)
        optimizer = parse("--config=base.yaml", "--config=later.yaml").model.init_args.optimizer
        assert optimizer.class_path.endswith("AdamW")
        given = optimizer.init_args
        assert (given.lr, given.weight_decay) == (0.01 if "0.01" in later else 0.3, 0.2)
        parse("--config=momentum.yaml", "--config=later.yaml")
        assert capsys.readouterr().err == "--model.optimizer: AdamW does not accept momentum of an earlier config\n"
    optimizer = parse("--config=later.yaml", "--config=momentum.yaml").model.init_args.optimizer
    assert (optimizer.class_path.endswith("SGD"), optimizer.init_args.momentum) == (True, 0.8)


def test_a_list_with_a_plus_adds_to_what_earlier_configs_give(workplace):
    of, base = "torchvision.transforms.v2", "class_path: CIFAR10DataModule"
    (workplace / "base.yaml").write_text(f"data: {{{base}, init_args: {{train_transforms: [{of}.RandAugment]}}}}")
    erasing = f"{{class_path: {of}.RandomErasing, init_args: {{p: 0.1}}}}"
    (workplace / "more.yaml").write_text(f"data: {{train_transforms+: [{erasing}]}}\ntrainer.callbacks+: Timer")
    (workplace / "one.yaml").write_text(f"data.train_transforms+: {of}.Identity")
    flags = [f"--data.train_transforms+={of}.ColorJitter", "--trainer.callbacks+=DeviceStatsMonitor"]
    config = parse("--config=base.yaml", "--config=more.yaml", "--config=one.yaml", *flags)
    transforms = config.data.init_args.train_transforms
    names = [spec.class_path.rpartition(".")[2] for spec in (*transforms, *config.trainer.callbacks)]
    assert names == ["RandAugment", "RandomErasing", "Identity", "ColorJitter", "Timer", "DeviceStatsMonitor"]
    assert transforms[1].init_args.p == 0.1
    alone = parse("--config=more.yaml")
    assert (len(alone.data.init_args.train_transforms), len(alone.trainer.callbacks)) == (1, 1)


def test_the_saved_config_of_a_run_can_be_used_with_another_class(workplace):
    """It holds every option of every class: what only the old class has goes where it is that class's own default."""
    given = [*MODEL, "--model.loss=CrossEntropyLoss", "--model.loss.label_smoothing=0.3"]
    command().parser.save(parse("--data.image_size=40", *given), "saved.yaml", skip_unset=False)
    assert parse("--config=saved.yaml").model == parse(*given).model
    assert "train_size" in yaml.safe_load((workplace / "saved.yaml").read_text())["data"]["init_args"]
    data = parse("--config=saved.yaml", "--data=FolderDataModule", "--data.root=x").data
    assert data.class_path.endswith("FolderDataModule")
    assert (data.init_args.image_size, data.init_args.root) == (40, "x")


@pytest.mark.parametrize("args", [["--data=my images"], ["--data", "my images/"], ["--config={data: ./my images}"]])
def test_a_folder_is_taken_for_what_it_holds(workplace, args):
    (workplace / "my images").mkdir()
    data = parse("--data.image_size=32", *args).data
    assert data.class_path.endswith("FolderDataModule")
    assert FolderDataModule(**vars(data.init_args)).root.samefile("my images")


def test_each_of_several_loggers_gets_what_follows_it():
    assert parse("--trainer.logger=false").trainer.logger is False
    for first in ("--trainer.logger=CSVLogger", "--trainer.logger+=CSVLogger"):
        args = (first, "--trainer.logger.name=a", "--trainer.logger+=CometLogger", "--trainer.logger.prefix=b")
        csv, comet = (one.init_args for one in parse(*args).trainer.logger)
        assert (csv.name, csv.prefix, comet.prefix) == ("a", "", "b")


def test_values_are_read_as_yaml_1_2_reads_them():
    text = "{a: 1, b: 1.0, c: yes, d: 'yes', e: null, f: [1, x], i: -3.5, j: &x {k: 1}, l: *x}"
    assert read_config(text) == yaml.safe_load(text)
    expected = {"a": 0.001, "b": "1e-3", "c": 200000.0, "d": "2020-01-01"}
    assert read_config("{a: 1e-3, b: '1e-3', c: 2E5, d: 2020-01-01}") == expected


LIMITS = [*(f"limit_{split}_batches" for split in ("train", "val", "test", "predict")), "overfit_batches"]


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("1.0", 1.0), ("2", 2), ("0.5", 0.5)])
def test_an_integer_is_a_number_of_batches_and_a_fraction_a_share(text, value, workplace):
    (workplace / "c.yaml").write_text("trainer:\n" + "".join(f"  {option}: {text}\n" for option in LIMITS))
    for args in ([f"--trainer.{option}={text}" for option in LIMITS], ["--config=c.yaml"]):
        config = parse(*args)
        saved = yaml.safe_load(command().parser.dump(config))["trainer"]
        for found in (place[option] for option in LIMITS for place in (config.trainer, saved)):
            assert (type(found), found) == (type(value), value)
    trainer = ExactTrainer(**dict.fromkeys(LIMITS, value), accelerator="cpu", logger=False)
    assert {type(getattr(trainer, option)) for option in LIMITS} == {type(value)}


def shown(command, *args, capsys):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        command([*args])
    assert ended.value.code == 0
    return capsys.readouterr().out


def names(text):
    return {line.split()[0] for line in text.splitlines() if line.startswith("  --")}


def test_the_help_of_fit_is_about_sixty_lines_with_the_options_of_data_and_model(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "110")
    lines = (text := shown(FitCLI, "--help", capsys=capsys)).splitlines()
    assert 50 <= len(lines) <= 75
    assert max(map(len, lines)) <= 110
    classes = FolderDataModule.__mro__[: FolderDataModule.__mro__.index(ImageDataModule) + 1]
    data = {f"data.{name}" for cls in classes for name in inspect.signature(cls).parameters} - {"data.kwargs"}
    model = {f"model.{name}" for name in inspect.signature(ImageClassifier).parameters}
    hidden = {f"--{name}" for name in data | model} - names(text)
    documented = " ".join(inspect.getdoc(cls) or "" for cls in (*classes, ReproducibleDataModule, ImageClassifier))
    advanced = {name for name in hidden if f" {name.split('.')[1]}: Advanced: " in " ".join(documented.split())}
    assert hidden - advanced - {"--data.seed"} == {"--model.class_names", "--model.preprocessing"}
    assert "  --callbacks.NAME false               Switches a callback off: last_checkpoint, best_" in text
    examples = [line.split("project.fit ")[1] for line in lines if line.startswith("  python -m project.fit")]
    assert len(examples) == 3
    for example in examples[1:]:
        parse(*shlex.split(example))


def test_the_rest_and_a_class_of_ones_own_are_in_help_all(capsys):
    text = shown(lambda args: parse(*args), f"--model={OWN_MODEL}", "--help-all", capsys=capsys)
    assert {"--data.prefetch_factor", "--callbacks.last_checkpoint.every_minutes", "--model.layer_decay"} <= names(text)
    assert "--trainer.check_val_every_n_epoch" in text
    assert "Advanced:" not in text
    assert "--data CIFAR10DataModule: " in text
    own = {f"--data.{name}" for name in inspect.signature(CIFAR10DataModule).parameters}
    assert own - {"--data.kwargs"} <= names(text)
    assert "--model OwnModel: A model of one's own" in text
    assert "--model.gamma 1.0\n      An option of one's own." in text


def test_evaluate_shows_what_it_takes(capsys):
    text = shown(EvaluateCLI, "--help", capsys=capsys)
    assert {"--split", "--output", "--data.root", "--trainer.devices"} <= names(text)
    assert not [name for name in names(text) if name.startswith("--model.") or name == "--data.flip"]
    assert "python -m project.evaluate runs/" in text
