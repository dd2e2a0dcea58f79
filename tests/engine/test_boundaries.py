"""The engine has one door and knows nothing of what is yours; private names of libraries stand in one module."""

import ast
import doctest
import hashlib
import inspect
import re
import runpy
import shutil
import sys
from functools import reduce
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from pkgutil import walk_packages

import pytest

from project import engine
from project.engine.upstream import PRIVATE_NAMES
from tests.conftest import SLIM, TINY
from tests.distributed.processes import ROOT, succeed

PACKAGE = engine.__name__.partition(".")[0]
PROJECT = ROOT / PACKAGE
ENGINE = PROJECT / "engine"
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


def imported(path: Path) -> set[str]:
    """The modules and names that a file imports, relative ones in full."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize(
    "path", sorted(ENGINE.rglob("*.py")), ids=lambda path: path.relative_to(ENGINE).as_posix()
)
def test_the_engine_imports_nothing_of_yours_and_does_not_name_the_package(path):
    ours = [module for module in imported(path) if module.partition(".")[0] == PACKAGE]
    assert [module for module in ours if not f"{module}.".startswith(f"{PACKAGE}.engine.")] == []
    text = path.read_text()
    absolute = re.findall(rf"^\s*(?:from|import) {PACKAGE}\b.*", text, re.M)
    named = re.findall(
        rf".*(?:\b{PACKAGE}[./]\w|\b{PACKAGE}/|-m {PACKAGE}\b|[\"'`]{PACKAGE}[\"'`]).*", text
    )
    assert [*absolute, *named, *RENAME["usages"](PACKAGE).findall(text)] == []


def test_yours_comes_in_by_the_door():
    names = set[str]()
    for path in PROJECT.rglob("*.py"):
        if ENGINE not in path.parents:
            names |= {name for name in imported(path) if name.startswith(f"{PACKAGE}.engine")}
    assert {name.rpartition(".")[0] for name in names} == {f"{PACKAGE}.engine"}
    assert len(names) <= 18


def test_the_engines_tests_pass_with_the_rest_of_the_package_removed(tmp_path):
    kept = [
        *(f"{PACKAGE}/engine", "tests/engine", "tests/distributed/processes.py"),
        *(f"{PACKAGE}/__init__.py", "tests/__init__.py", "tests/distributed/__init__.py"),
    ]
    for place in kept:
        copy = tmp_path / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copied = shutil.copytree if (ROOT / place).is_dir() else shutil.copy
        copied(ROOT / place, copy)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    fast = ["-k", "draw_alike or mean_gradient", "tests/engine/run", "tests/engine/training"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *fast]
    assert "[100%]" in succeed(command, tmp_path, PYTHONPATH=str(tmp_path)).out


def test_each_name_of_the_door_is_documented_and_its_example_runs():
    names = {name: getattr(engine, name) for name in engine._MODULES}
    assert len(names) <= 20  # two of them for examples alone
    assert all(value.__doc__ for value in names.values())
    flags = doctest.IGNORE_EXCEPTION_DETAIL  # the package may have another name
    results = doctest.testmod(engine, extraglobs=names, optionflags=flags)
    assert results.attempted > results.failed == 0


@pytest.mark.parametrize("place", PRIVATE_NAMES)
def test_a_private_name_is_what_it_was(place):
    module, name = place.split(":")
    found = reduce(getattr, name.split("."), import_module(module))
    source = inspect.getsource(found.fset if isinstance(found, property) else found)
    digest = hashlib.blake2b(source.encode()).hexdigest()[:12]
    message = f"read it, see that upstream.py still does what it says, and write {digest} there"
    assert digest == PRIVATE_NAMES[place], message


OWN = ("self", "cls", "super()")
THEIRS = {"torch", "torchvision", "torchmetrics", "lightning", "jsonargparse"}
# but not os._exit, and what is public of named tuples and of IPython
PRIVATE = re.compile(r"\._(?!_|exit$|replace$|asdict$|make$|fields$|render_traceback_$)\w+$")
IMPLICIT = re.compile(  # public by spelling alone: nobody documents what they hold
    r"\b(?:fit_loop\.(?!setup_data)\w+|\w*epoch_loop|(?:batch|epoch|optim)_progress|restarted_\w+|found_inf"
    r"|_schedule_phases)\b|\"loops\"|def state_dict\(self\).*:\n.*\n\s+return \{\}"
)


def test_no_other_module_touches_a_private_name_or_relies_on_what_upstream_happens_to_do():
    for path in PROJECT.rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        taken = {ast.unparse(node) for node in attributes if ast.unparse(node.value) not in OWN}
        private = [name for name in taken if PRIVATE.search(name)]
        private += [name for name in imported(path) if re.search(r"(^|\.)_(?!_)", name)]
        private += IMPLICIT.findall(path.read_text())
        assert path.name == "upstream.py" or not private, path


def private_names(cls: type) -> set[str]:
    """The private names that a class defines, or uses of itself, by its source."""
    own = r"(?:def |self\.|cls\.|super\(\)\.)(_(?!_)\w+)"
    return set(re.findall(own, inspect.getsource(cls)))


def test_no_class_shares_a_private_name_with_a_base_of_theirs():
    for module in walk_packages([str(PROJECT)], f"{PACKAGE}."):
        for cls in vars(import_module(module.name)).values():
            if inspect.isclass(cls) and cls.__module__ == module.name:
                bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] in THEIRS]
                theirs = {name for base in bases for name in private_names(base)}
                assert not private_names(cls) & theirs, cls


@pytest.mark.slow
def test_classes_inside_the_package_behave_as_those_outside_over_the_engine_of_a_renamed_package(
    tmp_path,
):
    renamed, upgraded = tmp_path / "renamed", tmp_path / "upgraded"
    for copy in (renamed, upgraded):
        shutil.copytree(PROJECT, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
    RENAME["rename"](renamed, f"{PACKAGE}_renamed")
    shutil.rmtree(upgraded / PACKAGE / "engine")
    shutil.copytree(renamed / f"{PACKAGE}_renamed" / "engine", upgraded / PACKAGE / "engine")
    runs = []
    for module in ("mine", f"{PACKAGE}.model.mine"):
        upgraded.joinpath(*module.split(".")).with_suffix(".py").write_text(MINE)
        flags = [
            *(*TINY, *SLIM, "--trainer.max_epochs=3", f"--name={module}", "--monitor=val/kappa"),
            *(f"--model={module}.MyModel", f"--data={module}.MyData"),
            *(f"--trainer.callbacks+={module}.MyCallback", "--trainer.callbacks+=EarlyStopping"),
            *("--trainer.callbacks.monitor=val/mine", "--callbacks.images_per_second=false"),
        ]
        command = [sys.executable, "-m", f"{PACKAGE}.fit", *flags]
        succeed(command, upgraded, timeout=300, PYTHONPATH=str(upgraded))
        runs.append(upgraded / "runs" / module)
    outside, inside = ([run / f"metrics.{kind}" for kind in ("csv", "json")] for run in runs)
    assert [file.read_text() for file in outside] == [file.read_text() for file in inside]
    assert "kappa" in inside[1].read_text()
