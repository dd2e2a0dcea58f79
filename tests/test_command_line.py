"""``--help`` fits two screens and is written by the docstrings; defaults are set in one place."""

import inspect
import re
import shlex
from typing import Any

import pytest
from lightkeeper.exact import UserError

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

    def __init__(self, *args: Any, gamma: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


OWN_MODEL = f"{__name__}.OwnModel"


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
    shown = [
        *("--trainer.check_val_every_n_epoch", "--model OwnModel: A model of one's own"),
        *FitCLI.help_texts.values(),  # in place of Lightning's
    ]
    assert [said for said in shown if said not in " ".join(text.split())] == []


@cases(
    "content error",
    ("import no_such_package", UserError),
    ("from project.model import NoSuchName", ImportError),
    ("{}.no_such_attribute", AttributeError),
)
def test_a_bug_in_the_module_that_a_path_names_is_no_misspelt_name(
    tmp_path, monkeypatch, content, error
):
    (tmp_path / "module_with_a_bug.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=r"'(no_such_package|NoSuchName|no_such_attribute)'"):
        find_builder("module_with_a_bug.Network")


def test_the_help_of_other_commands_has_whole_sentences():
    text = " ".join(predict.parser().format_help().split())
    assert "A CSV file; by default the rows go to standard output" in text
