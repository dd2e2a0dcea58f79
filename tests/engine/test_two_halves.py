"""The rules of the two halves: the engine knows nothing of what is yours, and treats it alike wherever it stands."""

import ast
import json
import re
import runpy
import shutil
import sys
import traceback
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, cast

import pytest

from project.engine.cli.command import one_line_errors
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import SLIM, TINY
from tests.distributed.processes import ROOT, succeed
from tests.small import small

PACKAGE = FitCLI.__module__.partition(".")[0]
ENGINE = ROOT / PACKAGE / "engine"
FILES = sorted(ENGINE.rglob("*.py"))
RENAME = runpy.run_path(str(ROOT / "scripts" / "rename.py"))

MINE = f"""
from lightning.pytorch import Callback
from torchmetrics.classification import MulticlassCohenKappa

from {PACKAGE}.data import SyntheticFlowersDataModule
from {PACKAGE}.model import ImageClassifier


class MyModel(ImageClassifier):
    def configure_metrics(self):
        return {{**super().configure_metrics(), "kappa": MulticlassCohenKappa(len(self.class_names))}}


class MyData(SyntheticFlowersDataModule):
    pass


class MyCallback(Callback):
    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("val/mine", float(trainer.current_epoch))
"""
RUN_EACH = f"""
import json, runpy, sys
for args in json.loads(sys.argv[1]):
    sys.argv[1:] = args
    try:
        runpy.run_module("{PACKAGE}.fit", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, (args, ended.code)
"""


def imported(path: Path) -> set[str]:
    """The modules that a file of the engine imports, relative ones in full."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            found |= {module} if node.module else {f"{module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ENGINE).as_posix())
def test_the_engine_imports_nothing_of_yours_and_does_not_name_the_package(path):
    ours = {module for module in imported(path) if module.partition(".")[0] == PACKAGE}
    assert {module for module in ours if not f"{module}.".startswith(f"{PACKAGE}.engine.")} == set()
    text = path.read_text()
    absolute = re.findall(rf"^\s*(?:from|import) {PACKAGE}\b.*", text, re.M)
    named = re.findall(rf".*(?:\b{PACKAGE}[./]\w|\b{PACKAGE}/|-m {PACKAGE}\b|[\"'`]{PACKAGE}[\"'`]).*", text)
    assert [*absolute, *named, *RENAME["usages"](PACKAGE).findall(text)] == []


@pytest.mark.slow
def test_classes_inside_the_package_behave_as_those_outside_over_the_engine_of_a_renamed_package(tmp_path):
    for name in ("renamed", "upgraded"):
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / PACKAGE, tmp_path / name / PACKAGE, ignore=without_caches)
        shutil.copy(ROOT / "pyproject.toml", tmp_path / name)
    RENAME["rename"](tmp_path / "renamed", f"{PACKAGE}_renamed")
    shutil.rmtree(tmp_path / "upgraded" / PACKAGE / "engine")
    shutil.copytree(tmp_path / "renamed" / f"{PACKAGE}_renamed" / "engine", tmp_path / "upgraded" / PACKAGE / "engine")
    upgraded = tmp_path / "upgraded"
    (upgraded / "mine.py").write_text(MINE)
    (upgraded / PACKAGE / "model" / "mine.py").write_text(MINE)

    def options(module: str, name: str) -> list[str]:
        own = [f"--model={module}.MyModel", f"--data={module}.MyData", f"--trainer.callbacks+={module}.MyCallback"]
        early = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/mine"]
        chosen = ["--monitor=val/kappa", "--mode=max", "--callbacks.images_per_second=false"]
        return [*TINY, *SLIM, "--trainer.devices=1", *own, *early, *chosen, "--trainer.max_epochs=3", f"--name={name}"]

    commands = [["--help"], options("mine", "outside"), options(f"{PACKAGE}.model.mine", "inside")]
    command = [sys.executable, "-c", RUN_EACH, json.dumps(commands)]
    succeed(command, upgraded, timeout=300, PYTHONPATH=str(upgraded))
    outside, inside = (upgraded / "runs" / name for name in ("outside", "inside"))
    assert (outside / "metrics.csv").read_text() == (inside / "metrics.csv").read_text()
    metrics = json.loads((inside / "metrics.json").read_text())
    assert metrics == json.loads((outside / "metrics.json").read_text())
    assert "kappa" in metrics["test"]


class BrokenStep(ImageClassifier):
    def training_step(self, batch, batch_idx):
        self.log("a", cast(Any, "text"))


def test_a_bug_in_the_users_step_keeps_its_whole_traceback_although_lightning_raises_it(workplace):
    with pytest.raises(Exception, match="`str` values cannot be logged") as caught, one_line_errors():
        small(f"--model={__name__}.BrokenStep")
    assert 'self.log("a", cast(Any, "text"))' in [frame.line for frame in traceback.extract_tb(caught.tb)]
