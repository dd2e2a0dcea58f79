"""What was given to a class is kept, in whatever order it was given; what another class had by default is not."""

import inspect
import sys
from functools import cache
from itertools import permutations

import pytest
import yaml
from torch import nn
from torch.optim import SGD, AdamW

from project.data import CIFAR10DataModule, FolderDataModule
from project.engine.cli.command_line import import_modules, last_value, with_name
from project.engine.cli.configs import read_config
from project.engine.errors import UserError
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.small import one_line


class ParsingOnly(FitCLI):
    """The command's options, without a run."""

    def before_instantiate_classes(self):
        pass

    def instantiate_classes(self):
        pass


@cache
def command():
    return ParsingOnly([])


def parser():
    return command().parser


def parse(*args):
    cli = command()
    return cli.parser.parse_command_line(args, cli._classes, cli.folder_class)


def arguments(spec):
    return vars(spec.init_args)


def own_defaults(cls):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


FLAGS = ["--data=FolderDataModule", "--data.root=x", "--data.image_size=32", "--config=c.yaml"]


def rotations(words):
    """Orders in which each pair of words comes in both orders."""
    return [[*words[first:], *words[:first]] for first in range(len(words))]


def test_data_options_are_kept_in_any_order(workplace):
    text = "data: {class_path: project.data.SyntheticFlowersDataModule, init_args: {batch_size: 8, image_size: 48}}"
    (workplace / "c.yaml").write_text(text)
    for order in [*rotations(FLAGS), FLAGS[::-1]]:
        data = FolderDataModule(**arguments(parse(*order).data))
        assert (data.root.name, data.image_size, data.batch_size) == ("x", 32, 8)
        assert data.fractions == {"val": 0.1, "test": 0.1}


OPTIMIZER = ["--model.optimizer=AdamW", "--model.optimizer.lr=0.003", "--model.optimizer.betas=[0.8,0.9]"]


@pytest.mark.parametrize("order", [*permutations(OPTIMIZER)], ids=lambda order: " ".join(order))
@pytest.mark.parametrize("in_full", [False, True])
def test_optimizer_options_are_kept_in_any_order(order, in_full, workplace):
    if in_full:
        order = [word.replace("r.", "r.init_args.").replace("r=", "r.class_path=torch.optim.") for word in order]
        order = [word.replace("init_args.lr.class_path=torch.optim.", "init_args.lr=") for word in order]
    given = arguments(parse(*order).model.init_args.optimizer)
    optimizer = AdamW(nn.Linear(1, 1).parameters(), **given)
    expected = AdamW(nn.Linear(1, 1).parameters(), lr=0.003, betas=(0.8, 0.9))
    assert {**optimizer.defaults, "betas": tuple(optimizer.defaults["betas"])} == expected.defaults


@pytest.mark.parametrize(
    ("key", "cls", "ours"),
    [("model.optimizer", AdamW, {}), ("data", CIFAR10DataModule, {"seed": 0})],
)
def test_a_newly_named_class_starts_from_its_own_defaults(key, cls, ours, workplace):
    spec = parse(f"--{key}={cls.__name__}")[key.replace("model.", "model.init_args.")]
    assert spec.class_path.endswith(cls.__name__)
    found = arguments(spec)
    for name, default in own_defaults(cls).items():
        assert found[name] == default or name in ours


def test_the_default_class_keeps_the_projects_defaults(workplace):
    given = arguments(parse("--model.optimizer=SGD", "--model.optimizer.lr=0.2").model.init_args.optimizer)
    ours = inspect.signature(ImageClassifier).parameters["optimizer"].default(nn.Linear(1, 1).parameters())
    assert SGD(nn.Linear(1, 1).parameters(), **given).defaults == {**ours.defaults, "lr": 0.2}


def test_what_a_config_gives_survives_a_flag_that_names_another_class(workplace):
    (workplace / "c.yaml").write_text(
        "model: {optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.3, weight_decay: 0.2}}}"
    )
    given = arguments(parse("--config=c.yaml", "--model.optimizer=AdamW").model.init_args.optimizer)
    assert (given["lr"], given["weight_decay"], given["eps"]) == (0.3, 0.2, 1e-8)


def test_flags_win_over_configs_and_later_configs_over_earlier_ones_wherever_they_stand(workplace):
    (workplace / "a.yaml").write_text("{trainer: {max_epochs: 1}, model: {layer_decay: 0.1, arch: resnet34}}")
    (workplace / "b.yaml").write_text("{trainer.max_epochs: 2, model.arch: resnet50}")
    for order in permutations(["--trainer.max_epochs=3", "--config=a.yaml", "--config=b.yaml"]):
        config = parse(*order)
        later = "resnet50" if order.index("--config=b.yaml") > order.index("--config=a.yaml") else "resnet34"
        assert (config.trainer.max_epochs, config.model.init_args.arch, config.model.init_args.layer_decay) == (
            3,
            later,
            0.1,
        )


def test_a_later_config_names_another_class_and_keeps_what_it_accepts(workplace, capsys):
    """What only repeats the old class's default goes; anything else that the new one does not accept is an error."""
    text = (
        "model: {optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.3, weight_decay: 0.2, dampening: 0.0%s}}}"
    )
    (workplace / "base.yaml").write_text(text % "")
    (workplace / "momentum.yaml").write_text(text % ", momentum: 0.8")
    for later in ("model: {optimizer: {class_path: AdamW, init_args: {lr: 0.01}}}", "model.optimizer: AdamW"):
        (workplace / "later.yaml").write_text(later)
        optimizer = parse("--config=base.yaml", "--config=later.yaml").model.init_args.optimizer
        assert optimizer.class_path.endswith("AdamW")
        given = arguments(optimizer)
        assert (given["lr"], given["weight_decay"]) == (0.01 if "0.01" in later else 0.3, 0.2)
        line = one_line(lambda: parse("--config=momentum.yaml", "--config=later.yaml"), capsys)
        assert "AdamW has no option 'momentum'" in line
    optimizer = parse("--config=later.yaml", "--config=momentum.yaml").model.init_args.optimizer
    assert (optimizer.class_path.endswith("SGD"), optimizer.init_args.momentum) == (True, 0.8)


def test_a_list_with_a_plus_adds_to_what_earlier_configs_give(workplace):
    transforms, callbacks = "torchvision.transforms.v2", "lightning.pytorch.callbacks"
    (workplace / "base.yaml").write_text(
        f"data: {{class_path: CIFAR10DataModule, init_args: {{train_transforms: [{transforms}.RandAugment]}}}}\n"
        f"trainer: {{callbacks: [{callbacks}.Timer]}}"
    )
    (workplace / "more.yaml").write_text(
        f"data: {{train_transforms+: [{{class_path: {transforms}.RandomErasing, init_args: {{p: 0.1}}}}]}}\n"
        f"trainer: {{callbacks+: [{callbacks}.EMAWeightAveraging]}}"
    )
    (workplace / "one.yaml").write_text(f"data.train_transforms+: {transforms}.Identity")
    config = parse(
        "--config=base.yaml",
        "--config=more.yaml",
        "--config=one.yaml",
        f"--data.train_transforms+={transforms}.ColorJitter",
        "--trainer.callbacks+=DeviceStatsMonitor",
    )
    names = [spec.class_path.rpartition(".")[2] for spec in config.data.init_args.train_transforms]
    assert names == ["RandAugment", "RandomErasing", "Identity", "ColorJitter"]
    assert config.data.init_args.train_transforms[1].init_args.p == 0.1
    names = [spec.class_path.rpartition(".")[2] for spec in config.trainer.callbacks]
    assert names == ["Timer", "EMAWeightAveraging", "DeviceStatsMonitor"]
    alone = parse("--config=more.yaml")
    assert (len(alone.data.init_args.train_transforms), len(alone.trainer.callbacks)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "args", "answer"),
    [
        (
            "model:\n  optimizer:\n    class_path: torch.optim.SGD\n    init_args:\n      momentum: 0.8",
            ["--model.optimizer=AdamW"],
            "--model.optimizer.momentum: AdamW has no option 'momentum'; Muon, RMSprop and SGD have it",
        ),
        (
            "data:\n  class_path: SyntheticFlowersDataModule\n  init_args: {train_size: 40}",
            ["--data=CIFAR10DataModule"],
            "--data.train_size: CIFAR10DataModule has no option 'train_size'; SyntheticFlowers",
        ),
        ("\ndata:\n  train_transform+: []", [], "--data.train_transform: Synth"),
        ("\ndata:\n  train_transforms+: [1]", [], "--data.train_transforms: Type collections.abc.Callable"),
        (
            "\ntrainer:\n  callbacks+: [Nothing]",
            [],
            "--trainer.callbacks: there is no Callback 'Nothing'",
        ),
        ("", ["--data.root=x"], "--data.root: SyntheticFlowersDataModule has no option 'root'; "),
        (
            "",
            ["--model.optimizer=AdamW", "--model.optimizer.momentum=0.9"],
            "AdamW has no option 'momentum'; Muon, RMSprop and SGD have it",
        ),
        (
            "",
            ["--model.optimizer.momentum=0.9", "--model.optimizer=AdamW"],
            "AdamW has no option 'momentum'; Muon, RMSprop and SGD have it",
        ),
    ],
)
def test_what_the_class_does_not_accept_is_an_error_that_names_one_that_does(workplace, capsys, text, args, answer):
    (workplace / "c.yaml").write_text(text)
    assert answer in one_line(lambda: parse("--config=c.yaml", *args), capsys)


def test_the_saved_config_of_a_run_can_be_used_with_another_class(workplace):
    """It holds every option of every class: what only the old class has goes where it is that class's own default."""
    parser().save(parse("--data.image_size=40"), "saved.yaml", skip_unset=False)
    assert "train_size" in yaml.safe_load((workplace / "saved.yaml").read_text())["data"]["init_args"]
    data = parse("--config=saved.yaml", "--data=FolderDataModule", "--data.root=x").data
    assert data.class_path.endswith("FolderDataModule")
    assert (data.init_args.image_size, data.init_args.root) == (40, "x")


def test_a_flag_is_never_taken_for_a_default(workplace, capsys):
    line = one_line(lambda: parse("--data=CIFAR10DataModule", "--data.train_size=3200"), capsys)
    assert "CIFAR10DataModule has no option 'train_size'" in line


def test_a_logger_may_be_given_its_options_first(workplace):
    for order in permutations(["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=x"]):
        assert parse(*order).trainer.logger.init_args.save_dir == "x"


def test_what_follows_a_logger_that_is_added_is_given_to_that_one(workplace, capsys):
    (added,) = parse("--trainer.logger+=CSVLogger", "--trainer.logger.save_dir=x").trainer.logger
    assert (added.class_path.rpartition(".")[2], added.init_args.save_dir) == ("CSVLogger", "x")
    added = "--trainer.logger+=CometLogger"
    for first in ("--trainer.logger=CSVLogger", "--trainer.logger+=CSVLogger"):
        args = (first, "--trainer.logger.name=a", added, "--trainer.logger.prefix=b")
        csv, comet = (one.init_args for one in parse(*args).trainer.logger)
        assert (csv.name, csv.prefix, comet.prefix) == ("a", "", "b")
    line = one_line(lambda: parse(added, "--trainer.logger.save_dir=x"), capsys)
    assert "CometLogger has no option 'save_dir'; CSVLogger, " in line
    assert "Run" not in line


def test_a_class_may_be_taken_back(workplace):
    (workplace / "c.yaml").write_text("model: {lr_scheduler: {class_path: StepLR, init_args: {step_size: 3}}}")
    assert parse("--config=c.yaml").model.init_args.lr_scheduler.init_args.step_size == 3
    assert parse("--config=c.yaml", "--model.lr_scheduler=null").model.init_args.lr_scheduler is None
    assert parse("--trainer.logger=false").trainer.logger is False


@pytest.mark.parametrize(
    "args",
    [
        ["a/best.ckpt", "--split=val"],
        ["--split", "val", "a/best.ckpt"],
        ["--ckpt_path", "a/best.ckpt", "--split=val"],
    ],
)
def test_evaluate_takes_the_path_as_it_stands(args):
    options = with_name("--ckpt_path", args)
    assert last_value("--ckpt_path", options) == "a/best.ckpt"
    assert last_value("--split", options) == "val"


def test_a_folder_is_taken_for_what_it_holds(workplace):
    (workplace / "my images").mkdir()
    (workplace / "c.yaml").write_text("data: my images")
    for args in (
        ["--data=my images"],
        ["--data", "my images/"],
        ["--config=c.yaml"],
        ["--data.image_size=32", "--data=./my images"],
    ):
        data = parse(*args).data
        assert data.class_path.endswith("FolderDataModule")
        assert FolderDataModule(**vars(data.init_args)).root.samefile("my images")


def test_options_are_not_abbreviated(workplace, capsys):
    (workplace / "c.yaml").write_text("trainer: {max_ep: 3}")
    for args in (["--trainer.max_ep=3"], ["--config=c.yaml"], ["--data.batch=3"], ["--nam=x"]):
        assert "no option" in one_line(lambda args=args: parse(*args), capsys)


@pytest.mark.parametrize("text", ["", "\n", "# a comment\n", "---\n", "model:\n", "{}"])
def test_an_empty_config_says_nothing(text, workplace):
    (workplace / "c.yaml").write_text(text)
    found = parse("--config=c.yaml").as_dict()
    assert found == {**parse().as_dict(), "config": found["config"]}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (bytes(range(256)), "'c.yaml' is not a text file"),
        (b"trainer: !!python/object/apply:os.system [exit]", "c.yaml, line 1: could not determine a constructor"),
        (b"trainer:\n  max_epochs: 3\n  max_epochs: 4", "'max_epochs' is given twice"),
        (b"data:\n  transforms+: [a]\n  transforms: [b]", "'transforms' is given twice"),
        (b"hello", "c.yaml: expected 'option: value', got 'hello'"),
        (b"trainer:\n\tmax_epochs: 3", "c.yaml, line 2: found character '\\t'"),
        (b"trainer:\n  max_epochs: many", "--trainer.max_epochs: expected int, not 'many'"),
        (b"trainer:\n  max_epocs: 3", "there is no option '--trainer.max_epocs'"),
        (b"data: {class_path: 3}", "--data: there is no ImageDataModule '3'"),
    ],
)
def test_a_config_that_cannot_be_used_is_one_line(text, answer, workplace, capsys):
    (workplace / "c.yaml").write_bytes(text)
    assert answer in one_line(lambda: parse("--config=c.yaml"), capsys)


def test_values_are_read_as_yaml_1_2_reads_them():
    text = "{a: 1, b: 1.0, c: yes, d: 'yes', e: null, f: [1, x], i: -3.5, j: &x {k: 1}, l: *x}"
    assert read_config(text) == yaml.safe_load(text)
    assert read_config("{a: 1e-3, b: '1e-3', c: 2E5, d: 2020-01-01}") == {
        "a": 0.001,
        "b": "1e-3",
        "c": 200000.0,
        "d": "2020-01-01",
    }


def test_import_may_be_repeated(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in "abc":
        (tmp_path / f"imported_{name}.py").write_text("")
    import_modules(["imported_a,imported_b", "imported_c"])
    assert all(sys.modules.pop(f"imported_{name}", None) for name in "abc")
    with pytest.raises(UserError, match="'missing' cannot be imported"):
        import_modules(["missing"])
