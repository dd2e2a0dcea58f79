"""The engine has one door and knows nothing of what is yours; private names of libraries stand in one module."""

import ast
import doctest
import hashlib
import inspect
import json
import re
import runpy
import shutil
import sys
import textwrap
from functools import reduce
from importlib import import_module
from importlib.metadata import version
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


TESTS_OF_YOURS = """
cli/test_command.py project.data project.fit project.model tests.conftest
cli/test_command.py tests.small
cli/test_command_line.py project.data project.evaluate project.fit project.model tests.conftest
cli/test_messages.py project.evaluate tests.conftest tests.small
test_boundaries.py tests.conftest
"""  # what the engine's tests still need of yours and of its tests


def allowed(table: str) -> dict[str, set[str]]:
    """Reads a table of files and modules; a long row is two."""
    modules: dict[str, set[str]] = {}
    for file, *names in map(str.split, table.strip().splitlines()):
        modules.setdefault(file, set()).update(names)
    return modules


def modules_of(path: Path) -> set[str]:
    """The modules that a file imports, or that it imports names from."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return names | {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}


def test_yours_comes_in_by_the_door():
    names = set[str]()
    for path in PROJECT.rglob("*.py"):
        if ENGINE not in path.parents:
            names |= {name for name in imported(path) if name.startswith(f"{PACKAGE}.engine")}
    assert {name.rpartition(".")[0] for name in names} == {f"{PACKAGE}.engine"}
    assert len(names) <= 18


def test_the_engines_tests_need_nothing_of_yours():
    shared = "engine|distributed.processes"
    ours = re.compile(rf"({PACKAGE}|tests|examples)(?!\.({shared})\b)(\.|$)")
    tests = ROOT / "tests" / "engine"
    needed = {}
    for path in tests.rglob("*.py"):
        if modules := {m for m in modules_of(path) if ours.match(m) and m != PACKAGE}:
            needed[path.relative_to(tests).as_posix()] = modules
    assert needed == allowed(TESTS_OF_YOURS)


def test_the_engines_tests_pass_with_the_rest_of_the_package_removed(tmp_path):
    kept = [f"{PACKAGE}/engine", "tests/engine", "tests/distributed/processes.py"]
    kept += [f"{PACKAGE}/__init__.py", "tests/__init__.py", "tests/distributed/__init__.py"]
    for place in kept:
        copy = tmp_path / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copied = shutil.copytree if (ROOT / place).is_dir() else shutil.copy
        copied(ROOT / place, copy)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    fast = "plain_trainer or restored or rewound or vanishes or draw_alike or mean_gradient"
    folders = ["tests/engine/run", "tests/engine/training"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", fast]
    assert "[100%]" in succeed([*command, *folders], tmp_path, PYTHONPATH=str(tmp_path)).out


def classes_of(paths: list[Path]) -> set[str]:
    """The names of public classes, of two words or more."""
    nodes = [node for path in paths for node in ast.parse(path.read_text()).body]
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    return {name for name in names if re.match("[A-Z]+[a-z0-9]+[A-Z]", name)}


def test_the_engine_names_no_class_example_or_page_of_yours():
    inside = [*ENGINE.rglob("*.py")]
    outside = [path for path in PROJECT.rglob("*.py") if path not in inside]
    names = "|".join(sorted(classes_of(outside) - classes_of(inside)))
    named = re.compile(rf".*(?:\b(?:{names})\b|\bexamples/|\b(?!README)\w+\.md\b).*")
    found = {(path.name, line) for path in inside for line in named.findall(path.read_text())}
    assert sorted(found) == []


def test_each_name_of_the_door_is_documented_and_its_example_runs():
    names = {name: getattr(engine, name) for name in engine._MODULES}
    assert len(names) <= 20  # two of them for examples alone
    assert all(value.__doc__ for value in names.values())
    examples = doctest.DocTestParser().get_examples(engine.__doc__ or "")
    shown = " ".join(example.source for example in examples)
    assert [name for name in names if not re.search(rf"\b{name}\b", shown)] == []
    flags = doctest.IGNORE_EXCEPTION_DETAIL  # the package may have another name
    assert doctest.testmod(engine, extraglobs=names, optionflags=flags).failed == 0


@pytest.mark.parametrize("place", PRIVATE_NAMES)
def test_a_private_name_is_what_it_was(place):
    module, name = place.split(":")
    package = module.partition(".")[0]
    now = f"{package} {version(package)}"
    try:
        found = reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        pytest.fail(
            f"{now} has no {place} ({error}); see project.engine.upstream for what it is needed"
        )
    source = inspect.getsource(found.fset if isinstance(found, property) else found)
    digest = hashlib.blake2b(source.encode()).hexdigest()[:12]
    assert digest == PRIVATE_NAMES[place], (
        f"{now} has changed {place}; read it, see that project.engine.upstream still does what it says, and write {digest} there"
    )


def private_attributes(path: Path) -> set[str]:
    """Attributes of anything but ``self`` and the like, and imported names, with a leading underscore."""
    parts = {
        part
        for name in imported(path)
        for part in name.split(".")
        if part not in ("__main__", "__future__")
    }
    found = {
        f"{path.relative_to(PROJECT)}: import {part}" for part in parts if part.startswith("_")
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        ):
            owner = ast.unparse(node.value)
            if owner not in OWN and (owner, node.attr) != ("os", "_exit"):
                found.add(f"{path.relative_to(PROJECT)}: {owner}.{node.attr}")
    return found


OWN = ("self", "cls", "super()")
THEIRS = {"torch", "torchvision", "torchmetrics", "lightning", "jsonargparse"}
PUBLIC = (
    "._replace",
    "._asdict",
    "._make",
    "._fields",
    "._render_traceback_",
)  # of named tuples, and of IPython


def test_no_other_module_touches_a_private_name():
    modules = [path for path in PROJECT.rglob("*.py") if path.name != "upstream.py"]
    assert not {
        line for path in modules for line in private_attributes(path) if not line.endswith(PUBLIC)
    }


IMPLICIT = re.compile(  # public by spelling alone: nobody documents what they hold
    r"\b(?:fit_loop\.(?!setup_data)\w+|\w*epoch_loop|(?:batch|epoch|optim)_progress|restarted_\w+|found_inf"
    r"|_schedule_phases)\b|\"loops\"|def state_dict\(self\).*:\n.*\n\s+return \{\}"
)


def test_no_other_module_relies_on_what_upstream_happens_to_do():
    modules = [path for path in PROJECT.rglob("*.py") if path.name != "upstream.py"]
    assert not [(path, found) for path in modules for found in IMPLICIT.findall(path.read_text())]
    assert IMPLICIT.search((ENGINE / "upstream.py").read_text())


def own_private_names(one: type) -> set[str]:
    """The private names that a class takes from itself, or gives itself, by its source."""
    nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one))))]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    names |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in OWN
    }
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


def test_no_class_shares_a_private_name_with_a_base_of_theirs():
    modules = [
        import_module(found.name) for found in walk_packages([str(PROJECT)], f"{PROJECT.name}.")
    ]
    found = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    classes = {one for one in found if one.__module__.partition(".")[0] == PROJECT.name}
    bases = {
        base
        for one in classes
        for base in one.__mro__
        if base.__module__.partition(".")[0] in THEIRS
    }
    ours, theirs = ({one: own_private_names(one) for one in group} for group in (classes, bases))
    pairs = [(one, base) for one in classes for base in one.__mro__ if base in theirs]
    assert not [
        (one, base, ours[one] & theirs[base]) for one, base in pairs if ours[one] & theirs[base]
    ]


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
    for place in (upgraded, upgraded / PACKAGE / "model"):
        (place / "mine.py").write_text(MINE)

    def options(module: str, name: str) -> list[str]:
        own = [
            f"--model={module}.MyModel",
            f"--data={module}.MyData",
            f"--trainer.callbacks+={module}.MyCallback",
        ]
        early = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/mine"]
        chosen = ["--monitor=val/kappa", "--mode=max", "--callbacks.images_per_second=false"]
        return [
            *TINY,
            *SLIM,
            "--trainer.devices=1",
            *own,
            *early,
            *chosen,
            "--trainer.max_epochs=3",
            f"--name={name}",
        ]

    commands = [["--help"], options("mine", "outside"), options(f"{PACKAGE}.model.mine", "inside")]
    succeed(
        [sys.executable, "-c", RUN_EACH, json.dumps(commands)],
        upgraded,
        timeout=300,
        PYTHONPATH=str(upgraded),
    )
    outside, inside = (upgraded / "runs" / name for name in ("outside", "inside"))
    assert (outside / "metrics.csv").read_text() == (inside / "metrics.csv").read_text()
    metrics = json.loads((inside / "metrics.json").read_text())
    assert metrics == json.loads((outside / "metrics.json").read_text())
    assert "kappa" in metrics["test"]
