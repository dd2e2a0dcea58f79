"""``--model`` takes a class by the mechanism of ``--data``; without one its options are those of ImageClassifier."""

import sys
from typing import Any

import pytest
import yaml

from tests.engine.cli.test_command_line import parse, parser, rotations
from tests.small import one_line

SOURCE = '''
from typing import Any

from lightning.pytorch.cli import OptimizerCallable
from torch.optim import Adam

from project.model import ImageClassifier


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
        super().__init__(*args, layer_decay=layer_decay, optimizer=optimizer, **kwargs)
'''


@pytest.fixture
def own_model(workplace, monkeypatch):
    """A module in the folder in which the command runs."""
    (workplace / "own_model.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(workplace)
    yield
    module = sys.modules.pop("own_model", None)
    if module is not None:
        module.OwnModel.__name__ = "Forgotten"


def model_of(*args: str) -> Any:
    return parse(*args).model


OWN = ["--model=own_model.OwnModel", "--model.gamma=2", "--model.arch=resnet34", "--model.optimizer.eps=0.1"]


def test_its_options_and_those_of_the_base_are_taken_in_any_order(own_model):
    for order in [*rotations(OWN), OWN[::-1]]:
        model = model_of(*order)
        given = model.init_args
        assert model.class_path == "own_model.OwnModel"
        assert (given.gamma, given.layer_decay, given.arch) == (2.0, 0.2, "resnet34")
        assert given.optimizer.class_path == "torch.optim.Adam"
        assert (given.optimizer.init_args.lr, given.optimizer.init_args.eps) == (0.25, 0.1)


@pytest.mark.parametrize(
    "text",
    [
        "model: {arch: resnet34, optimizer: AdamW, lr_scheduler: {class_path: StepLR, init_args: {step_size: 3}}}",
        "model: {arch: resnet34, optimizer: {class_path: AdamW}, lr_scheduler.class_path: StepLR,"
        " lr_scheduler.init_args.step_size: 3}",
        "model: {class_path: project.model.ImageClassifier, init_args: {arch: resnet34, optimizer: {class_path: AdamW},"
        " lr_scheduler: {class_path: StepLR, init_args: {step_size: 3}}}}",
        "model: {init_args: {arch: resnet34, optimizer: AdamW, lr_scheduler: {class_path: StepLR, init_args:"
        " {step_size: 3}}}}",
        "model: other.yaml",
    ],
)
def test_a_config_may_name_the_class_or_leave_it_out(workplace, text):
    (workplace / "c.yaml").write_text(text)
    (workplace / "other.yaml").write_text(
        "{arch: resnet34, optimizer: AdamW, lr_scheduler: {class_path: StepLR, init_args: {step_size: 3}}}"
    )
    flags = [
        "--model=ImageClassifier",
        "--model.arch=resnet34",
        "--model.optimizer=AdamW",
        "--model.lr_scheduler=StepLR",
    ]
    assert model_of("--config=c.yaml") == model_of(*flags, "--model.lr_scheduler.step_size=3")
    assert model_of("--config=c.yaml").init_args.optimizer.init_args.lr == 0.001  # torch's own


def test_a_flag_names_another_class_than_the_config_and_keeps_what_it_gives(own_model, workplace):
    (workplace / "c.yaml").write_text(
        "model: {arch: resnet34, layer_decay: 0.4, optimizer: {class_path: SGD, init_args: {lr: 3}}}"
    )
    given = model_of("--config=c.yaml", "--model=own_model.OwnModel").init_args
    assert (given.arch, given.layer_decay, given.gamma) == ("resnet34", 0.4, 1.0)
    assert given.optimizer.class_path.endswith("SGD")
    assert (given.optimizer.init_args.lr, given.optimizer.init_args.momentum) == (3.0, 0.0)


def test_the_saved_config_says_the_same_again(own_model, workplace):
    model = model_of(*OWN, "--model.loss=CrossEntropyLoss", "--model.loss.label_smoothing=0.3")
    parser().save(parse(*OWN, "--model.loss=CrossEntropyLoss", "--model.loss.label_smoothing=0.3"), "saved.yaml")
    assert yaml.safe_load((workplace / "saved.yaml").read_text())["model"]["class_path"] == "own_model.OwnModel"
    assert model_of("--config=saved.yaml") == model


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        ("--model=own_model.OwnModel --model.gama=2", "OwnModel has no option 'gama'; did you mean --model.gamma?"),
        ("--model=own_model.OwnModel --model.gamma=x", "--model.gamma: expected float, not 'x'"),
        ("--model=own_model.Missing", "--model: there is no ImageClassifier 'own_model.Missing'"),
        ("--model=torch.nn.Linear", "--model: there is no ImageClassifier 'torch.nn.Linear'"),
        ("--model.gamma=2", "--model.gamma: ImageClassifier has no option 'gamma'"),
        ("--model.momentum=2", "ImageClassifier has no option 'momentum'; did you mean --model.optimizer.momentum?"),
        (
            "--config=c.yaml",
            "--model.arc: ImageClassifier has no option 'arc'; did you mean --model.arch?",
        ),
        ("--config=d.yaml", "--model.class_names cannot be given: it follows from data.class_names"),
    ],
)
def test_a_mistake_is_one_line(own_model, workplace, capsys, args, answer):
    (workplace / "c.yaml").write_text("model:\n  layer_decay: 0.2\n  arc: resnet34\n")
    (workplace / "d.yaml").write_text("model: {class_names: [a]}")
    assert answer in one_line(lambda: parse(*args.split()), capsys)


def test_the_help_of_all_options_shows_its_own(own_model, capsys):
    with pytest.raises(SystemExit):
        parse("--model=own_model.OwnModel", "--help-all")
    text = capsys.readouterr().out
    assert "--model OwnModel: A model of one's own" in text
    assert "--model.gamma 1.0\n      An option of one's own." in text
    assert "--model.base_batch_size" in text
