"""``--help`` fits two screens, shows what people use, and is written by the docstrings; ``--help-all`` shows all."""

import inspect
import shlex

import pytest

from project.data import CIFAR10DataModule, FolderDataModule, ImageDataModule
from project.engine.loading.data_module import ReproducibleDataModule
from project.evaluate import EvaluateCLI
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.engine.cli.test_command_line import OWN_MODEL, parse


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
    assert {f"--data.{name}" for name in inspect.signature(CIFAR10DataModule).parameters} - {"--data.kwargs"} <= names(
        text
    )
    assert "--model OwnModel: A model of one's own" in text
    assert "--model.gamma 1.0\n      An option of one's own." in text


def test_evaluate_shows_what_it_takes(capsys):
    text = shown(EvaluateCLI, "--help", capsys=capsys)
    assert {"--split", "--output", "--data.root", "--trainer.devices"} <= names(text)
    assert not [name for name in names(text) if name.startswith("--model.") or name == "--data.flip"]
    assert "python -m project.evaluate runs/" in text
