"""``--help`` fits two screens, shows what people use, and is written by the docstrings; ``--help-all`` shows all."""

import inspect
import shlex

import pytest

from project.check_data import parse as parse_check_data
from project.data import CIFAR10DataModule, FolderDataModule, ImageDataModule
from project.data.module import ResizedDataModule
from project.engine.loading.data_module import ReproducibleDataModule
from project.evaluate import EvaluateCLI
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.engine.cli.test_command_line import parse


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
    text = shown(FitCLI, "--help", capsys=capsys)
    lines = text.splitlines()
    assert 50 <= len(lines) <= 75
    assert max(map(len, lines)) <= 110
    classes = FolderDataModule.__mro__[: FolderDataModule.__mro__.index(ImageDataModule) + 1]
    data = {name for cls in classes for name in inspect.signature(cls).parameters}
    model = {*inspect.signature(ImageClassifier).parameters} - {"class_names", "preprocessing"}
    wanted = {f"--data.{name}" for name in data - {"kwargs", "seed"}} | {f"--model.{name}" for name in model}
    hidden = wanted - names(text)
    assert 8 <= len(hidden) <= 16
    for name in hidden:  # its own docstring says so
        documented = " ".join(inspect.getdoc(cls) or "" for cls in (*classes, ReproducibleDataModule, ImageClassifier))
        assert f" {name.split('.')[1]}: Advanced: " in " ".join(documented.split())
    assert len([name for name in names(text) if name.startswith("--trainer.")]) == 10
    documented = (inspect.getdoc(ResizedDataModule) or "").split("image_size: ")[1]
    assert f"--data.image_size {documented[:20]}" in " ".join(text.split())
    assert "  --callbacks.NAME false               Switches a callback off: last_checkpoint, best_" in text
    examples = [line.split("project.fit ")[1] for line in lines if line.startswith("  python -m project.fit")]
    assert len(examples) == 3
    for example in examples[1:]:
        parse(*shlex.split(example))


def test_the_rest_is_in_help_all(capsys):
    text = shown(FitCLI, "--help-all", capsys=capsys)
    assert "--trainer.check_val_every_n_epoch" in text
    assert "--data.prefetch_factor" in text
    assert "Advanced:" not in text
    assert "--data CIFAR10DataModule: " in text
    assert "--callbacks.confusion_matrix" in text
    assert "--callbacks.last_checkpoint.every_minutes" in text
    assert all(
        f"  --data.{name}" in text for name in inspect.signature(CIFAR10DataModule).parameters if name != "kwargs"
    )


def test_evaluate_shows_what_it_takes(capsys):
    text = shown(EvaluateCLI, "--help", capsys=capsys)
    assert {"--split", "--output", "--data.root", "--trainer.devices"} <= names(text)
    assert not [name for name in names(text) if name.startswith("--model.")]
    assert "--data.flip" not in names(text)
    assert "python -m project.evaluate runs/" in text


@pytest.mark.parametrize("command", [parse_check_data])
def test_each_command_has_an_example(command, capsys):
    assert "example: python -m project." in shown(command, "--help", capsys=capsys)
